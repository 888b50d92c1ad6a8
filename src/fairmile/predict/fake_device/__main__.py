"""`python -m fairmile.predict.fake_device REQUESTS.json OUT.json`: trace what each request names, write the traces."""

from __future__ import annotations

import sys

from fairmile.predict.fake_device.child import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
