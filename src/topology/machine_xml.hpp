// Machines as NCCL's topology files: what NCCL_TOPO_DUMP_FILE writes and NCCL_TOPO_FILE reads.
//
//   <system version="1">
//     <cpu numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
//       <pci busid="0000:17:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
//         <pci busid="0000:19:00.0" class="0x030200" ...>
//           <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:05:00.0" count="18" tclass="0x068000"/></gpu>
//         </pci>
//         <pci busid="0000:1a:00.0" class="0x020000" ...>
//           <nic><net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x..." gdr="1"/></nic>
//         </pci>
//       </pci>
//     </cpu>
//   </system>
#pragma once

#include <string>
#include <string_view>

#include "status/status.hpp"
#include "topology/machine.hpp"

namespace weft {

struct MachineFile {
  Machine machine;
  // One sentence on what was missing or not understood, and stands at its default now; empty where nothing was.
  std::string warning;
};

// What is missing gets NCCL's defaults; what is no XML, or no <system version="1">, is weftInvalidArgument.
Result<MachineFile> parse_machine(std::string_view text, const std::string& file);
// What parse_machine reads back, and NCCL's own, simpler parser, too: no declaration, no tabs.
std::string to_xml(const Machine& machine);

}  // namespace weft
