"""What a prepared launch asks of numba-cuda's dispatcher."""

from types import SimpleNamespace

import pytest
from numba.cuda import dispatcher

from numba_tma.backend.numba_cuda import race_check
from numba_tma.backend.numba_cuda.launches import compiled_for, ordinary_reason


class Kernel:
    """Stands for a dispatcher: notes what it is asked."""

    specialized, overloads = True, {(): "compiled"}

    def __init__(self):
        self.asked = []

    def configure(self, grid, block):
        self.asked.append((grid, block))
        return self

    def _push_args(self, args):
        self.asked.append(args)
        return "before"

    def _pop_args(self, before):
        self.asked.append(before)

    def _select_launch_config_dispatcher(self, configuration):
        assert configuration is self
        return self

    def _update_launch_config_sensitivity(self, compiled, configuration):
        assert configuration is self
        self.asked.append(compiled)


def test_the_dispatcher_learns_whether_the_kernel_depends_on_its_launch():
    kernel = Kernel()
    assert compiled_for(kernel, 3, 32, (1, 2)) == "compiled"
    assert kernel.asked == [(3, 32), (1, 2), "compiled", "before"]


def test_a_kernel_without_a_signature_is_compiled_for_its_arguments_and_launch(monkeypatch):
    kernel = Kernel()
    kernel.specialized = False

    def call(chosen, *args, **kws):
        assert chosen is kernel and kws == {dispatcher._LAUNCH_CONFIG_KW: kernel}
        if args == (0,):
            raise ValueError("refused")
        return f"compiled for {args}"

    fake = SimpleNamespace(Dispatcher=SimpleNamespace(_cuda_call=call))
    monkeypatch.setattr(dispatcher, "_dispatcher", fake)
    assert compiled_for(kernel, 3, 32, (5, 6)) == "compiled for (5, 6)"
    assert kernel.asked[2:] == ["compiled for (5, 6)", "before"]
    with pytest.raises(ValueError, match="refused"):
        compiled_for(kernel, 3, 32, (0,))
    assert kernel.asked[-1] == "before"  # the arguments are taken back


@pytest.mark.parametrize(
    ("debug", "extensions", "text"),
    [(False, [], ""), (True, [], "debug=True"), (False, [1], "has extensions"), (True, [1], "deb")],
)
def test_what_only_numba_cuda_launches(debug, extensions, text):
    reason = ordinary_reason(SimpleNamespace(debug=debug, extensions=extensions))
    assert text in reason and bool(reason) == bool(text)


@pytest.mark.parametrize(
    ("grid", "records", "lost", "ended"),
    [((5,), [], 0, True), ((5, 3), [1], 0, False), ((5, 3, 2), [], 4, False)],
)
@pytest.mark.parametrize("found", [[], ["race"]])
def test_races_are_judged_in_the_grid_of_the_launch(monkeypatch, grid, records, lost, ended, found):
    asked = []
    monkeypatch.setattr(race_check.races, "read_log", lambda: (["event"], lost))
    monkeypatch.setattr(
        race_check, "races_of", lambda *given, **named: asked.append((given, named)) or found
    )
    given = (["event"], race_check._SITES, race_check.names_of)
    if found:
        monkeypatch.setattr(race_check.races, "error_of_races", lambda *given: KeyError(given))
        with pytest.raises(KeyError) as caught:
            race_check.check(grid, records)
        assert caught.value.args[0] == (found, records, lost)
    else:
        race_check.check(grid, records)
    (((events, whole, *rest), named),) = asked
    assert (events, *rest) == given and named == {"ended": ended}
    assert whole[:3] == (*grid, 1, 1)[:3]  # a grid has one block along the axes that it leaves out
