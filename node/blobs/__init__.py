"""Blob stores: the seam (`base`), a directory (`file`), a bucket (`s3`), and the probe that refuses an unfit one."""
