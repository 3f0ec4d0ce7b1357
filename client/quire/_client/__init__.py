"""What is behind `quire` and `quire.aio`. Nothing here is promised to stay."""
