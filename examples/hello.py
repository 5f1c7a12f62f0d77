import loom_mq as loom


@loom.step(retry=loom.Retry(attempts=5))
async def charge(amount: int) -> str:
    print(f"charging {amount}")
    return f"receipt for {amount}"


@loom.step
def ship(receipt: str) -> str:  # a plain function runs in a thread
    print(f"shipping against the {receipt}")
    return "parcel 1"


@loom.flow
async def order(ctx: loom.Context, amount: int) -> str:
    receipt = await ctx.run(charge, amount)
    if amount >= 100 and not await ctx.suspend(on="Approval", type=bool):
        return "refused"
    await ctx.sleep(2)  # durable: holds no worker
    return await ctx.run(ship, receipt)
