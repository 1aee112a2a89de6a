"""Starts reprokit's agent as Python starts, then hands on to the user's own sitecustomize.

Any Python that the training starts finds this file through PYTHONPATH, Python 2 included, so it keeps
to syntax that all of them read and leaves those below 3.7 alone.
"""

import os
import sys

_own_directory = os.path.dirname(os.path.normpath(__file__))  # normpath works in a directory that is gone
_own_module = sys.modules.pop(__name__)  # held here: Python 2 empties a module that nobody holds
sys.path[:] = [_entry for _entry in sys.path if os.path.normpath(_entry) != _own_directory]

try:
    _run = os.environ.get("REPROKIT_RUN", "")
    if sys.version_info >= (3, 7) and _run:
        # Opened and not only looked at: to a program without access to it the shim opens it all the same.
        os.close(os.open(_run + "/plan.json", os.O_RDONLY))
        from _imp import _fix_co_filename  # type: ignore[attr-defined]  # as importlib's own loaders do
        from importlib._bootstrap import module_from_spec as _module_from_spec
        from importlib._bootstrap_external import MAGIC_NUMBER as _MAGIC_NUMBER
        from importlib.machinery import FileFinder as _FileFinder
        from importlib.machinery import ModuleSpec as _ModuleSpec
        from importlib.machinery import SourceFileLoader as _SourceFileLoader
        from marshal import loads as _loads

        class _Loader(_SourceFileLoader):
            """Reads bytecode and writes none: only the launcher does, before any program of its runs starts. A first
            run that compiles and a second that does not would leave the program's memory in two states."""

            def get_code(self, fullname):  # type: ignore[no-untyped-def]
                try:
                    if fullname in _archived:
                        code = _archived.pop(fullname)[-1]
                        _fix_co_filename(code, self.path)
                        return code
                    return super().get_code(fullname)
                except Exception:  # the bytecode is damaged, as a full disk leaves it
                    return self.source_to_code(self.get_data(self.path), self.path)

            def set_data(self, *_, **__):  # type: ignore[no-untyped-def]
                pass

        class _Finder(_FileFinder):
            """Finds modules for _Loader, also in the folders of the packages that it finds."""

            def find_spec(self, fullname, target=None):  # type: ignore[no-untyped-def]
                spec = super().find_spec(fullname, target)
                for place in [] if spec is None else spec.submodule_search_locations or []:
                    sys.path_importer_cache[place] = _Finder(place, (_Loader, [".py"]))
                return spec

        class _Archive:
            """Finds the modules of the start in one file of the launcher (run/agent_archive.py), as to look for each
            takes longer than to run it. What is not as its source takes the long way."""

            @staticmethod
            def find_spec(fullname, path=None, target=None):  # type: ignore[no-untyped-def]
                if fullname not in _archived:
                    return None
                try:
                    name, changed, size, _ = _archived[fullname]
                    place = os.path.join(_package, name)
                    found = os.stat(place)
                    is_known = (found.st_mtime, found.st_size) == (changed, size)
                except Exception:  # another release wrote it
                    is_known = False
                if not is_known:
                    del _archived[fullname]
                    return None
                folder = os.path.dirname(place) if name.endswith("__init__.py") else None
                spec = _ModuleSpec(fullname, _Loader(fullname, place), origin=place, is_package=folder is not None)
                spec.has_location = True
                if folder is not None:
                    spec.submodule_search_locations = [folder]
                    sys.path_importer_cache[folder] = _Finder(folder, (_Loader, [".py"]))
                return spec

        _package = os.path.dirname(_own_directory)
        _archived = {}
        try:
            with open(
                os.path.join(_package, "__pycache__", "start.%s.archive" % sys.implementation.cache_tag), "rb"
            ) as _file:
                _content = _file.read()
            if _content.startswith(_MAGIC_NUMBER):
                _archived = dict(_loads(_content[len(_MAGIC_NUMBER) :]))
        except Exception:  # there is none, or it is damaged
            pass
        sys.path_importer_cache[_package] = _Finder(_package, (_Loader, [".py"]))
        _loader = _Loader("_reprokit_agent", os.path.join(_package, "__init__.py"))
        _spec = _ModuleSpec("_reprokit_agent", _loader, origin=_loader.path, is_package=True)
        _spec.has_location = True
        _spec.submodule_search_locations = [_package]
        sys.modules["_reprokit_agent"] = _module_from_spec(_spec)
        sys.meta_path.insert(0, _Archive)
        try:
            _loader.exec_module(sys.modules["_reprokit_agent"])
            from _reprokit_agent.start import start as _start  # type: ignore[import-not-found]

            _start(_run, os.environ.get("REPROKIT_ID", ""))
        finally:
            sys.meta_path.remove(_Archive)
except Exception:  # the agent's failure is never the training's
    pass

# The user's own, as if this file were not there: one that is missing raises the ImportError by which
# site.py knows that there is none, one that fails fails in site.py's hands.
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401
