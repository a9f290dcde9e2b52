#!/opt/velaray/bin/python
"""Exit with 0 if the admin interface of this container answers, even if only to ask for a token."""

import os
import sys
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

URL = f"http://127.0.0.1:{os.environ.get('VELARAY_ADMIN_PORT', '8080')}/admin/v2/brokers/ready"

try:
    with build_opener(ProxyHandler({})).open(URL, timeout=4):
        pass
except HTTPError as error:
    sys.exit(0 if error.code == 401 else f"{URL}: {error}")
except OSError as error:
    sys.exit(f"{URL}: {error}")
