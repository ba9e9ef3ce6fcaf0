"""A tool as a model writes one for the occasion: twenty imports, and an answer of 4 KB."""

from __future__ import annotations

import argparse
import asyncio
import base64
import collections
import csv
import datetime
import email
import functools
import hashlib
import html
import http.client
import itertools
import json
import logging
import pathlib
import re
import shlex
import sqlite3
import subprocess
import urllib.request

from tools.registry import registry, tool_result

IMPORTED = (argparse, asyncio, base64, collections, csv, datetime, email, functools, hashlib, html, http.client,
            itertools, json, logging, pathlib, re, shlex, sqlite3, subprocess, urllib.request)  # fmt: skip
LINES = 40
WIDTH = 100


def report(args, **kw):
    lines = ["%04d %s" % (number, args["text"].ljust(WIDTH - 5)) for number in range(LINES)]
    return tool_result(text="\n".join(lines), length=len(lines), task=kw["task_id"], ok=True)


SCHEMA = {
    "name": "bench_occasion",
    "description": "Repeat a text on numbered lines.",
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}
registry.register("bench_occasion", "bench", SCHEMA, report)
