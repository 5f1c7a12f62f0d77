"""The orders of the example, as they come in."""

from __future__ import annotations

import csv
from decimal import Decimal
from pathlib import Path

from examples.orders.model import Line, Order

FILE = Path(__file__).with_name("orders.csv")


def read_orders(limit: int | None = None) -> list[Order]:
    """The first `limit` orders of the file, all by default."""
    lines: dict[tuple[str, str], list[Line]] = {}
    with FILE.open(newline="") as rows:
        for row in csv.DictReader(rows):
            line = Line(row["sku"], int(row["quantity"]), Decimal(row["price"]))
            lines.setdefault((row["order"], row["customer"]), []).append(line)
    orders = [Order(name, customer, tuple(items)) for (name, customer), items in lines.items()]
    return orders[:limit]
