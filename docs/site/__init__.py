"""What the documentation site has besides the pages: its contents, its checks, the explorer."""
