"""Writes the .algo files named on the command line into a C++ table: embed.py OUTPUT FILE..."""

import pathlib
import sys

output, *files = map(pathlib.Path, sys.argv[1:])
entries = []
for file in files:
    text = file.read_text(encoding="ascii")
    if ')algo"' in text:
        sys.exit(f"{file}: the text cannot be embedded")
    entries.append(f'    {{"{file.name}", R"algo({text})algo"}},\n')
output.write_text(
    '#include "program/embedded.hpp"\n\nnamespace weft {\n\n'
    f"const std::array<EmbeddedProgram, {len(entries)}> kTable = {{{{\n{''.join(entries)}}}}};\n\n"
    "std::span<const EmbeddedProgram> embedded_programs() { return kTable; }\n\n}  // namespace weft\n"
)
