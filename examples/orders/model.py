"""What an order is."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True)
class Line:
    """So many of one article."""

    sku: str
    quantity: int
    price: Decimal

    @property
    def total(self) -> Decimal:
        return self.price * self.quantity


@dataclass(frozen=True)
class Order:
    """What a customer asked for."""

    id: str
    customer: str
    lines: tuple[Line, ...]

    @property
    def total(self) -> Decimal:
        return sum((line.total for line in self.lines), Decimal(0))


@dataclass(frozen=True)
class Receipt:
    """Money taken."""

    reference: str
    amount: Decimal


@dataclass(frozen=True)
class Parcel:
    """A line on its way."""

    sku: str
    tracking: str


@dataclass(frozen=True)
class Invoice:
    """How an order ended."""

    order: str
    paid: Decimal
    parcels: tuple[Parcel, ...]
    approved_by_hand: bool
