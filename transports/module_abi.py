"""A number that stands for the text of the given files, as a header: a module and what loads it must agree on them."""
import hashlib
import sys

digest = hashlib.sha256(b"".join(open(name, "rb").read() for name in sys.argv[1:])).hexdigest()
print(f"#pragma once\n\n#include <cstdint>\n\nnamespace weft {{\ninline constexpr uint32_t kModuleAbi = 0x{digest[:8]};\n}}")
