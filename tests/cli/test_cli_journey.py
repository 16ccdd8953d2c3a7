"""Train, evaluate, generate: the whole way, through the command line."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest_cli import BUDGET, TRAINING, invoke
