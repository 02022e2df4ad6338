"""Chromium without a window, driven by Selenium, for tests of pages."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromedriver")


@contextmanager
def browser(width: int = 1280, height: int = 900, *, dark: bool = False) -> Generator[Any]:
    """Start a browser with an empty profile, and end it; skip the test where there is none."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        pytest.skip(f"{' and '.join(missing)} not installed (Debian: chromium, chromium-driver)")
    from selenium import webdriver

    with tempfile.TemporaryDirectory(prefix="em-browser-") as folder:
        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        # Tests run as root in a container, which has a small /dev/shm.
        for flag in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu"):
            options.add_argument(f"--{flag}")
        options.add_argument(f"--user-data-dir={folder}")
        options.add_argument(f"--window-size={width},{height}")
        if dark:
            options.add_argument("--force-dark-mode")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(str(shutil.which("chromedriver")))
        driver = webdriver.Chrome(options=options, service=service)
        try:
            # The smallest window of Chromium is wider than a phone.
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
            yield driver
        finally:
            driver.quit()
