"""Coroutines wait for programs that end in another order in each run, and print that order."""

import asyncio
import random

dice = random.SystemRandom()


async def run(number):
    program = await asyncio.create_subprocess_exec("sleep", str(dice.random() / 20))
    await program.wait()
    return number


async def main():
    for _ in range(5):
        print([await result for result in asyncio.as_completed([run(number) for number in range(6)])])


asyncio.run(main())
