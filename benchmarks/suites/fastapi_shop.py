"""A shop in FastAPI, with an operation for each way in which its users declare arguments. See `fastapi_calls.py`."""

from __future__ import annotations

from datetime import date
from enum import Enum
from typing import Annotated
from uuid import UUID

from fastapi import Body, Cookie, FastAPI, File, Form, Header, Query, UploadFile
from pydantic import BaseModel, Field

app = FastAPI(title="Shop")


class Size(str, Enum):
    small = "small"
    large = "large"


class Item(BaseModel):
    name: str
    price: float = Field(gt=0)
    tags: list[str] = []
    size: Size = Size.small
    maker: dict[str, str] | None = None


class Order(BaseModel):
    items: list[Item]
    due: date | None = None
    note: str | None = None


class Page(BaseModel):
    limit: int = Field(10, le=50)
    offset: int = 0
    tags: list[str] = []


class Login(BaseModel):
    user: str
    remember: bool = False


@app.get("/items/{item_id}")
def get_item(item_id: int, q: str | None = None):
    return {"item_id": item_id, "q": q}


@app.get("/search")
def search(words: Annotated[list[str], Query()], size: Size | None = None, exact: bool = False):
    return {"words": words, "size": size, "exact": exact}


@app.get("/page")
def page(p: Annotated[Page, Query()]):
    return p


@app.get("/head")
def head(x_trace: Annotated[str, Header()], x_many: Annotated[list[str] | None, Header()] = None):
    return {"trace": x_trace, "many": x_many}


@app.get("/cook")
def cook(theme: Annotated[str | None, Cookie()] = None):
    return {"theme": theme}


@app.post("/items")
def create(item: Item):
    return item


@app.post("/orders")
def order(order: Order, dry: bool = False):
    return {"order": order, "dry": dry}


@app.put("/both/{item_id}")
def both(item_id: UUID, item: Item, user: Annotated[str, Body()]):
    return {"id": item_id, "item": item, "user": user}


@app.post("/embed")
def embed(item: Annotated[Item, Body(embed=True)]):
    return item


@app.post("/list")
def many(items: list[Item]):
    return {"n": len(items), "first": items[0]}


@app.post("/number")
def number(n: Annotated[int, Body()]):
    return {"n": n}


@app.post("/login")
def login(
    user: Annotated[str, Form()], tags: Annotated[list[str], Form()] = (), remember: Annotated[bool, Form()] = False
):
    return {"user": user, "tags": tags, "remember": remember}


@app.post("/model-form")
def model_form(data: Annotated[Login, Form()]):
    return data


@app.post("/file")
async def file(file: UploadFile, note: Annotated[str, Form()] = ""):
    return {"name": file.filename, "type": file.content_type, "text": (await file.read()).decode(), "note": note}


@app.post("/files")
async def files(files: list[UploadFile]):
    return {"texts": [(await f.read()).decode() for f in files]}


@app.post("/bytes")
async def raw(data: Annotated[bytes, File()]):
    return {"n": len(data)}


@app.delete("/items/{item_id}", status_code=200)
def delete(item_id: int, force: bool = False):
    return {"gone": item_id, "force": force}


@app.patch("/items/{item_id}")
def patch(item_id: int, change: dict[str, str | int | None]):
    return {"id": item_id, "change": change}


@app.get("/paths/{rest:path}")
def paths(rest: str):
    return {"rest": rest}


@app.get("/day/{day}")
def day(day: date, zone: Annotated[str, Query(alias="time-zone")] = "UTC"):
    return {"day": day, "zone": zone}
