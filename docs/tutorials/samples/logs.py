"""Writes app.log: 60,000 made-up events, one a line. The tutorial on logs uses it."""

import random
from datetime import datetime, timedelta

LINES = 60_000
USERS = ("mira", "oslo", "root", "deploy", "backup", "anna", "ben")
PATHS = ("/health", "/login", "/api/orders", "/api/orders/{n}", "/static/app.js", "/api/users/{n}", "/search?q={word}")
WORDS = ("shoes", "lamp", "table", "red", "blue", "winter")


def event() -> str:
    kind, n, word = random.random(), random.randint(1, 9999), random.choice(WORDS)
    if kind < 0.6:
        status = random.choices([200, 304, 404, 500], [90, 6, 3, 1])[0]
        path, milliseconds = random.choice(PATHS).format(n=n, word=word), random.randint(1, 900)
        return f"INFO nginx[812]: GET {path} {status} {milliseconds}ms client=10.0.{n % 256}.{n % 199}"
    if kind < 0.75:
        change, user = random.choice(["opened", "closed"]), random.choice(USERS)
        return f"INFO auth[377]: session {change} for user {user} uid={n % 1000 + 1000}"
    if kind < 0.85:
        return f"WARN pool[45]: connection {n} idle for {random.randint(30, 600)}s, closing"
    if kind < 0.95:
        seconds, retries = random.randint(1, 90), random.randint(0, 3)
        return f"INFO worker-{n % 8}[90{n % 8}]: job {n} finished in {seconds}.{n % 10}s, {retries} retries"
    return f"ERROR db[45]: query timed out after {random.choice([5, 10, 30])}s: SELECT * FROM orders WHERE id={n}"


random.seed(0)
time = datetime(2026, 3, 1, 6)
with open("app.log", "w", encoding="utf-8") as log:
    for _ in range(LINES):
        time += timedelta(milliseconds=random.expovariate(1 / 900))
        log.write(f"{time.isoformat(timespec='milliseconds')} {event()}\n")
