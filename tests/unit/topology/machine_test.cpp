#include "topology/machine.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <random>

#include "mutations.hpp"
#include "topology/machine_detect.hpp"
#include "topology/machine_xml.hpp"

namespace weft {
namespace {

std::string text_of(const std::string& name) {
  std::ifstream file(WEFT_MACHINES "/" + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

MachineFile parsed(const std::string& text) {
  auto file = parse_machine(text, "test.xml");
  EXPECT_TRUE(file.ok()) << file.status().message();
  return file.ok() ? file.value() : MachineFile{};
}

TEST(Machine, CoresOfAMask) {
  EXPECT_EQ(cores_of("ff"), "0-7");
  EXPECT_EQ(cores_of("00000001,00000003"), "0-1,32");
  EXPECT_EQ(cores_of("1,,80000001"), "0,31,64");
  EXPECT_EQ(cores_of(""), "");
}

TEST(MachineXml, ReadsEightGpus) {
  const MachineFile file = parsed(text_of("eight_gpus.xml"));
  EXPECT_EQ(file.warning, "");
  const Machine& machine = file.machine;
  ASSERT_EQ(machine.numas.size(), 2U);
  EXPECT_EQ(cores_of(machine.numas[0].affinity), "0-55,104-143");
  EXPECT_EQ(machine.pcis.size(), 24U);
  ASSERT_EQ(machine.gpus.size(), 8U);
  ASSERT_EQ(machine.nets.size(), 8U);
  const Pci& pci = machine.pcis[static_cast<size_t>(machine.gpus[5].pci)];
  EXPECT_EQ(pci.numa, 1);
  EXPECT_EQ(machine.pcis[static_cast<size_t>(pci.parent)].kind, kPciBridge);
  EXPECT_NEAR(bandwidth_of(pci), 63, 0.1);
  ASSERT_EQ(machine.gpus[5].links.size(), 4U);
  EXPECT_EQ(machine.gpus[5].links[2].count, 5);
  EXPECT_EQ(machine.nets[7].name, "mlx5_7");
  EXPECT_EQ(machine.nets[7].megabits, 400000);
}

TEST(MachineXml, WhatIsWrittenIsReadBack) {
  for (const char* name : {"eight_gpus.xml", "small.xml"}) {
    const Machine machine = parsed(text_of(name)).machine;
    const std::string text = to_xml(machine);
    const MachineFile again = parsed(text);
    EXPECT_EQ(again.warning, "");
    EXPECT_EQ(to_xml(again.machine), text);
    // NCCL's parser knows no declaration, no tabs, and no space before the end of an empty element.
    EXPECT_EQ(text.find("<system version=\"1\">\n"), 0U);
    EXPECT_EQ(text.find('\t'), std::string::npos);
    EXPECT_EQ(text.find(" />"), std::string::npos);
  }
}

// What is missing gets a default, and is said once.
TEST(MachineXml, Defaults) {
  const MachineFile file = parsed(text_of("small.xml"));
  EXPECT_EQ(
      file.warning,
      "test.xml: pci 0000:02:00.0: link_speed is ''; pci 0000:02:00.0: link_width is 0; nvlink 0000:01:00.0 has no "
      "tclass; and 3 more; defaults are taken");
  const Machine& machine = file.machine;
  EXPECT_EQ(machine.numas[0].number, -1);
  EXPECT_EQ(machine.pcis[1].gigatransfers, 8);
  EXPECT_EQ(machine.pcis[1].width, 16);
  EXPECT_EQ(machine.gpus[1].dev, 3);  // a hole in the numbers is none of our business
  EXPECT_EQ(machine.gpus[1].links[0].kind, 0x030000U);
  EXPECT_EQ(machine.nets[0].dev, 0);
  EXPECT_EQ(machine.nets[0].pci, -1);
  EXPECT_EQ(machine.nets[0].megabits, 10000);
}

TEST(MachineXml, SaysWhatIsMissing) {
  const auto expect = [](const std::string& inside, const std::string& reason) {
    const MachineFile file =
        parsed("<system version=\"1\"><cpu numaid=\"0\" affinity=\"1\">" + inside + "</cpu></system>");
    EXPECT_NE(file.warning.find(reason), std::string::npos) << file.warning;
    parsed(to_xml(file.machine));
  };
  const std::string speed = " link_speed=\"8\" link_width=\"4\"";
  expect("<pci/>", "pci has no legal busid");
  expect("<pci busid=\"0000:01:00.0\" class=\"0x020000\" link_speed=\"8\"/>", "pci 0000:01:00.0 has no link_width");
  expect("<pci busid=\"0000:01:00.0\" class=\"x\"" + speed + "/>", "pci 0000:01:00.0: class is 'x'");
  expect("<pci busid=\"0000:01:00.0\" class=\"0x20000\"" + speed + "><gpu/></pci>",
         "gpu of pci 0000:01:00.0 has no dev");
  expect("<pci busid=\"0000:01:00.0\" class=\"0x20000\"" + speed + "/><pci busid=\"0000:01:00.0\"/>", "is there twice");
  expect("<gpu dev=\"0\"/>", "gpu 0 is in no pci");
  expect("<nic><net name=\"a\" dev=\"0\" speed=\"0\"/></nic>", "net a: speed is 0");
  expect("<nic><net dev=\"2\" speed=\"10\"/></nic>", "net 2 has no name");
  EXPECT_NE(parsed("<system version=\"1\"><cpu/></system>").warning.find("cpu has no numaid"), std::string::npos);
  EXPECT_NE(parsed("<system version=\"1\"/>").warning.find("there is no cpu"), std::string::npos);
}

TEST(MachineXml, SaysWhatIsWrong) {
  const auto expect = [](const std::string& text, const std::string& reason) {
    auto file = parse_machine(text, "test.xml");
    ASSERT_FALSE(file.ok()) << text;
    EXPECT_EQ(file.status().code(), weftInvalidArgument);
    EXPECT_NE(file.status().message().find(reason), std::string::npos) << file.status().message();
  };
  expect("", "test.xml: no XML at byte 0 of 0");
  expect("<system version=\"1\"><cpu>", "test.xml: no XML at byte");
  expect("<graphs version=\"1\"/>", "its element is 'graphs'; legal: system");
  expect("<system version=\"2\"/>", "system version is 2; legal: 1");
}

TEST(MachineXml, DeepNestingEnds) {
  std::string text = "<system version=\"1\"><cpu numaid=\"0\" affinity=\"1\">", end;
  for (int i = 0; i < 50000; ++i) text += "<pci>", end += "</pci>";
  EXPECT_NE(parsed(text + end + "</cpu></system>").warning.find("more"), std::string::npos);
}

// Whatever bytes come, there is an answer, and what was understood can be written.
TEST(MachineXml, Mutations) {
  std::mt19937 random(5);
  for (const char* name : {"eight_gpus.xml", "small.xml"}) {
    const std::string whole = text_of(name);
    for (size_t end = 0; end < whole.size(); end += 1 + random() % 7) {
      static_cast<void>(parse_machine(whole.substr(0, end), "test.xml"));
    }
    int read = 0;
    for (int i = 0; i < 3000; ++i) {
      const std::string text = mutated(whole, random, 6, 40);
      if (auto file = parse_machine(text, "test.xml"); file.ok()) {
        ++read;
        const std::string written = to_xml(file->machine);
        EXPECT_TRUE(parse_machine(written, "again.xml").ok()) << written;
      }
    }
    EXPECT_GT(read, 100);
  }
}

TEST(Machine, ThisOneIsWrittenAndReadBack) {
  const Machine machine = this_machine();
  ASSERT_FALSE(machine.numas.empty());
  EXPECT_NE(cores_of(machine.numas[0].affinity), "");
  EXPECT_GT(machine.numas[0].bytes, 0U);
  const std::string text = to_xml(machine);
  const MachineFile again = parsed(text);
  EXPECT_EQ(again.warning, "");
  EXPECT_EQ(to_xml(again.machine), text);
}

}  // namespace
}  // namespace weft
