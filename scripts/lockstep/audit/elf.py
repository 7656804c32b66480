"""Read the dynamic section of a 64-bit little-endian ELF file: what it needs, wants and offers to the loader.

Written here rather than taken from LIEF or pyelftools for speed alone: an audit reads some 1,500 libraries of several
gigabytes, and only a few megabytes of each matter. docs/audit.md gives the times of all three, measured.

Layout and constants: System V gABI chapter 4 and 5, elf.h, and the LSB for symbol versions. What the loader reads are
the program headers, so section headers, which may be stripped, are used only to count symbols where no hash table does.
"""

from __future__ import annotations

import mmap
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"\x7fELF"
EM_CUDA = 190
"""Device code (cubin). It is loaded by the driver, never by ld.so."""

_ET_DYN, _ET_EXEC = 3, 2
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_SHT_DYNSYM = 11
_DT_NULL, _DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SONAME = 0, 1, 4, 5, 6, 10, 14
_DT_RPATH, _DT_RUNPATH = 15, 29
_DT_GNU_HASH, _DT_VERSYM, _DT_VERDEF, _DT_VERNEED = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFE
_STB_GLOBAL, _STB_WEAK, _STB_GNU_UNIQUE = 1, 2, 10
_STV_DEFAULT, _STV_PROTECTED = 0, 3
_VER_FLG_WEAK = 2
_VER_FLG_BASE = 1
_SYMBOL = struct.Struct("<IBBHQQ")
# A count that only a garbled file holds: libtorch_cuda, the largest known, has some 300,000 dynamic symbols.
_MOST_SYMBOLS = 20_000_000
_MOST_RECORDS = 100_000
_IN_MEMORY = 64 << 20


class ElfError(ValueError):
    """The file is no ELF of our kind or is damaged; the text is one clause for people."""


@dataclass(frozen=True, slots=True)
class Elf:
    """What the loader would read of one file.

    needed: DT_NEEDED names. runpath: DT_RUNPATH or DT_RPATH as written. undefined: strong undefined dynamic symbols
    as (name, version or ""). defined: the exported names, joined with newlines (a join is cheap to pass between
    processes). wants: (library, version) of DT_VERNEED, weak ones left out. gives: versions of DT_VERDEF.
    dynamic: False for a static program, a relocatable object or device code, which have nothing to resolve.
    """

    machine: int
    dynamic: bool = False
    soname: str = ""
    interp: bool = False
    needed: tuple[str, ...] = ()
    runpath: str = ""
    undefined: tuple[tuple[str, str], ...] = ()
    defined: str = ""
    wants: tuple[tuple[str, str], ...] = ()
    gives: tuple[str, ...] = ()

    def exports(self) -> set[str]:
        """Return the exported names as a set."""
        return set(self.defined.split("\n")) if self.defined else set()


def read_elf(path: Path) -> Elf:
    """Read an ELF file through a memory map. ElfError where it is damaged, OSError where it cannot be read."""
    with path.open("rb") as stream:
        try:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ElfError("is an empty file") from None
        # Most of a library is code that is never looked at: do not read ahead into it.
        mapped.madvise(mmap.MADV_RANDOM)
        with mapped:
            return parse_elf(mapped)


def parse_elf(data: mmap.mmap | bytes) -> Elf:
    """Parse the bytes of an ELF file. ElfError names what is wrong with a damaged one; nothing else is raised."""
    try:
        return _Reader(data).read()
    except (struct.error, IndexError, UnicodeDecodeError, OverflowError):
        raise ElfError("is a damaged ELF file: its tables point outside it") from None


class ElfBuffer:
    """An ELF file that arrives in pieces, from a tar or a wheel. A large one goes to disk and is mapped from there."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY, dir="/var/tmp")  # noqa: SIM115
        self._size = 0

    def __enter__(self) -> ElfBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, piece: bytes) -> None:
        """Add the next piece."""
        self._size += self._file.write(piece)

    def parse(self) -> Elf:
        """Parse what was written; raises like parse_elf."""
        if self._size <= _IN_MEMORY:
            self._file.seek(0)
            return parse_elf(self._file.read())
        self._file.flush()
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return parse_elf(mapped)


class _Reader:
    def __init__(self, data: mmap.mmap | bytes) -> None:
        self.data = data
        self.size = len(data)
        self.loads: list[tuple[int, int, int]] = []
        self.strings = b""

    def read(self) -> Elf:
        if self.data[:4] != MAGIC:
            raise ElfError("is no ELF file")
        if self.size < 64:
            raise ElfError("is a truncated ELF file: its header is cut short")
        bits, order = self.data[4], self.data[5]
        if order != 1:
            raise ElfError("is a big-endian ELF file, which no target can load")
        kind, machine = struct.unpack_from("<HH", self.data, 16)
        if bits != 2:
            return Elf(machine)
        phoff, shoff = struct.unpack_from("<QQ", self.data, 32)
        phentsize, phnum, shentsize, shnum = struct.unpack_from("<HHHH", self.data, 54)
        if machine == EM_CUDA or kind not in (_ET_EXEC, _ET_DYN):
            return Elf(machine)
        if phnum and (phentsize < 56 or phoff + phnum * phentsize > self.size):
            raise ElfError("is a truncated ELF file: its program headers lie past its end")
        dynamic, interp = self._segments(phoff, phentsize, phnum)
        if dynamic is None:
            return Elf(machine, interp=interp)
        tags = self._tags(*dynamic)
        self.strings = self._string_table(tags)
        count = self._symbol_count(tags, shoff, shentsize, shnum)
        undefined, defined = self._symbols(tags, count)
        return Elf(
            machine=machine,
            dynamic=True,
            interp=interp,
            soname=self._string(tags[_DT_SONAME][0]) if _DT_SONAME in tags else "",
            needed=tuple(self._string(offset) for offset in tags.get(_DT_NEEDED, ())),
            runpath=":".join(self._string(offset) for tag in (_DT_RUNPATH, _DT_RPATH) for offset in tags.get(tag, ())),
            undefined=undefined,
            defined=defined,
            wants=tuple((file, version) for file, version, flags, _ in self._needs(tags) if not flags & _VER_FLG_WEAK),
            gives=tuple(self._gives(tags)),
        )

    def _segments(self, offset: int, entry: int, count: int) -> tuple[tuple[int, int] | None, bool]:
        """Note where each PT_LOAD lies; return (offset, size) of PT_DYNAMIC and whether there is a PT_INTERP."""
        dynamic, interp = None, False
        for number in range(count):
            kind, _, at, address, _, size = struct.unpack_from("<IIQQQQ", self.data, offset + number * entry)
            if kind == _PT_LOAD:
                if at + size > self.size:
                    raise ElfError(f"is a truncated ELF file: {self.size} bytes of at least {at + size}")
                self.loads.append((address, at, size))
            elif kind == _PT_DYNAMIC:
                dynamic = (at, size)
            elif kind == _PT_INTERP:
                interp = True
        return dynamic, interp

    def _place(self, address: int) -> int:
        """Turn a virtual address of the dynamic section into an offset in the file."""
        for start, at, size in self.loads:
            if start <= address < start + size:
                return address - start + at
        raise ElfError("is a damaged ELF file: a table lies outside its segments")

    def _tags(self, offset: int, size: int) -> dict[int, list[int]]:
        if offset + size > self.size:
            raise ElfError("is a truncated ELF file: its dynamic section lies past its end")
        tags: dict[int, list[int]] = {}
        for tag, value in struct.iter_unpack("<QQ", self.data[offset : offset + size // 16 * 16]):
            if tag == _DT_NULL:
                break
            tags.setdefault(tag, []).append(value)
        return tags

    def _string_table(self, tags: dict[int, list[int]]) -> bytes:
        if _DT_STRTAB not in tags or _DT_STRSZ not in tags:
            return b""
        at, size = self._place(tags[_DT_STRTAB][0]), tags[_DT_STRSZ][0]
        if at + size > self.size:
            raise ElfError("is a truncated ELF file: its string table lies past its end")
        return bytes(self.data[at : at + size])

    def _string(self, offset: int) -> str:
        end = self.strings.find(b"\0", offset)
        if end < 0 or offset >= len(self.strings):
            raise ElfError("is a damaged ELF file: a name lies outside its string table")
        return self.strings[offset:end].decode("utf-8", "surrogateescape")

    def _symbol_count(self, tags: dict[int, list[int]], shoff: int, entry: int, sections: int) -> int:
        """Return the length of the dynamic symbol table, which ELF states nowhere outright."""
        if _DT_HASH in tags:
            return int(struct.unpack_from("<II", self.data, self._place(tags[_DT_HASH][0]))[1])
        if shoff and sections and entry >= 64 and shoff + sections * entry <= self.size:
            for number in range(sections):
                at = shoff + number * entry
                if struct.unpack_from("<I", self.data, at + 4)[0] == _SHT_DYNSYM:
                    return int(struct.unpack_from("<Q", self.data, at + 32)[0]) // _SYMBOL.size
        if _DT_GNU_HASH in tags:
            return self._gnu_hash_count(self._place(tags[_DT_GNU_HASH][0]))
        return 0

    def _gnu_hash_count(self, at: int) -> int:
        """Return one past the highest symbol of a GNU hash table: the end of the chain of the highest bucket."""
        buckets, first, bloom, _ = struct.unpack_from("<IIII", self.data, at)
        table = at + 16 + bloom * 8
        chains = table + buckets * 4
        if chains > self.size:
            raise ElfError("is a damaged ELF file: its hash table lies past its end")
        last = max((value for (value,) in struct.iter_unpack("<I", self.data[table:chains])), default=0)
        if last < first:
            return int(first)
        while not struct.unpack_from("<I", self.data, chains + (last - first) * 4)[0] & 1:
            last += 1
        return int(last) + 1

    def _symbols(self, tags: dict[int, list[int]], count: int) -> tuple[tuple[tuple[str, str], ...], str]:
        """Return the strong undefined names with their versions, and the exported names joined with newlines."""
        if _DT_SYMTAB not in tags or count < 1:
            return (), ""
        at = self._place(tags[_DT_SYMTAB][0])
        if count > _MOST_SYMBOLS or at + count * _SYMBOL.size > self.size:
            raise ElfError("is a damaged ELF file: its symbol table lies past its end")
        undefined: list[tuple[int, int]] = []
        defined: list[bytes] = []
        strings, find = self.strings, self.strings.find
        limit = len(strings)
        table = self.data[at : at + count * _SYMBOL.size]
        for number, (name, info, other, section, _, _) in enumerate(_SYMBOL.iter_unpack(table)):
            bind = info >> 4
            if section:
                if bind in (_STB_GLOBAL, _STB_WEAK, _STB_GNU_UNIQUE) and other & 3 in (_STV_DEFAULT, _STV_PROTECTED):
                    end = find(b"\0", name)
                    if end < 0 or name >= limit:
                        raise ElfError("is a damaged ELF file: a symbol's name lies outside its string table")
                    defined.append(strings[name:end])
            elif name and bind == _STB_GLOBAL:
                undefined.append((number, name))
        versions = self._wanted_versions(tags, [number for number, _ in undefined], count)
        wanted = tuple((self._string(name), versions.get(number, "")) for number, name in undefined)
        return wanted, b"\n".join(defined).decode("utf-8", "surrogateescape")

    def _wanted_versions(self, tags: dict[int, list[int]], numbers: list[int], count: int) -> dict[int, str]:
        if _DT_VERSYM not in tags or not numbers:
            return {}
        at = self._place(tags[_DT_VERSYM][0])
        if at + count * 2 > self.size:
            raise ElfError("is a damaged ELF file: its version table lies past its end")
        names = {index: version for _, version, _, index in self._needs(tags)}
        found = {number: struct.unpack_from("<H", self.data, at + number * 2)[0] & 0x7FFF for number in numbers}
        return {number: names[index] for number, index in found.items() if index in names}

    def _needs(self, tags: dict[int, list[int]]) -> Iterator[tuple[str, str, int, int]]:
        """Yield (library, version, flags, index) of DT_VERNEED."""
        if _DT_VERNEED not in tags:
            return
        at, seen = self._place(tags[_DT_VERNEED][0]), 0
        while True:
            _, count, file, first, following = struct.unpack_from("<HHIII", self.data, at)
            entry = at + first
            for _ in range(count):
                _, flags, index, name, step = struct.unpack_from("<IHHII", self.data, entry)
                yield self._string(file), self._string(name), flags, index & 0x7FFF
                entry += step
                seen += 1
                if seen > _MOST_RECORDS:
                    raise ElfError("is a damaged ELF file: its version table does not end")
            seen += 1
            if not following or seen > _MOST_RECORDS:
                return
            at += following

    def _gives(self, tags: dict[int, list[int]]) -> Iterator[str]:
        """Yield the version names of DT_VERDEF, the file's own name left out."""
        if _DT_VERDEF not in tags:
            return
        at = self._place(tags[_DT_VERDEF][0])
        for _ in range(_MOST_RECORDS):
            _, flags, _, _, _, first, following = struct.unpack_from("<HHHHIII", self.data, at)
            if not flags & _VER_FLG_BASE:
                yield self._string(struct.unpack_from("<I", self.data, at + first)[0])
            if not following:
                return
            at += following
