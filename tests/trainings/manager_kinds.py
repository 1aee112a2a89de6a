"""Uses all kinds of objects that a manager of multiprocessing makes, one process after the other."""

import copy
import multiprocessing


def work(namespace, table, value, number):
    namespace.count = namespace.count + number
    table[number] = namespace.start
    value.value += number


if __name__ == "__main__":
    with multiprocessing.Manager() as manager:
        namespace, table = manager.Namespace(start=7, count=0), manager.dict(a=[1])
        value, numbers, array = manager.Value("i", 3), manager.list([1, {"x": 2}]), manager.Array("d", [1.5])
        for number in range(2):
            process = multiprocessing.Process(target=work, args=(namespace, table, value, number))
            process.start()
            process.join()
        print(namespace.start, namespace.count, dict(table), value.value, "a" in table, len(numbers), str(namespace))
        del namespace.start
        print(hasattr(namespace, "start"), table._getvalue(), copy.deepcopy(numbers), namespace._getvalue())
        numbers += [6]
        array[0] = 2.5
        table["inner"] = manager.list([1])
        table["inner"].append(2)
        print([*numbers], array[:], table.pop("a"), numbers[::-1], list(table["inner"]))
        try:
            numbers[99]
        except IndexError as error:
            print(error)
