"""Shares memory with processes: an array with a lock, and an array and a value without one."""

import multiprocessing


def main():
    guarded = multiprocessing.get_context("fork").Array("i", 4)
    array = multiprocessing.get_context("fork").Array("i", 4, lock=False)
    value = multiprocessing.Value("i", 0, lock=False)
    process = multiprocessing.get_context("fork").Process(target=look, args=(guarded, array, value))
    process.start()
    process.join()


def look(guarded, array, value):
    print(guarded[0], array[0], value.value, flush=True)


main()
