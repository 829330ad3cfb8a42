//! The numbers of system calls by name and architecture.

use super::SeccompArch;

/// The number of a call. `None`: it does not exist there.
pub(super) fn number(name: &str, arch: SeccompArch) -> Option<u32> {
    rows().find_map(|row| (row.name == name).then(|| row.number(arch))).flatten()
}

/// The largest number of the table.
pub(super) fn newest(arch: SeccompArch) -> u32 {
    rows().filter_map(|row| row.number(arch)).max().unwrap_or_default()
}

struct Row {
    name: &'static str,
    numbers: [Option<u32>; 3],
}

impl Row {
    fn number(&self, arch: SeccompArch) -> Option<u32> {
        let [x86_64, x86, x32] = self.numbers;
        match arch {
            SeccompArch::X86_64 => x86_64,
            SeccompArch::X86 => x86,
            SeccompArch::X32 => x32.map(|number| number | X32_BIT),
        }
    }
}

fn rows() -> impl Iterator<Item = Row> {
    TABLE.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let mut fields = line.split(' ');
        let name = fields.next()?;
        let mut number = || fields.next().and_then(|text| text.parse().ok());
        Some(Row { name, numbers: [number(), number(), number()] })
    })
}

/// In the number of every x32 call.
pub(super) const X32_BIT: u32 = 0x4000_0000;

static TABLE: &str = include_str!("syscalls.txt");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_kernel() {
        assert_eq!(number("read", SeccompArch::X86_64), Some(0));
        assert_eq!(number("clone3", SeccompArch::X86_64), u32::try_from(libc::SYS_clone3).ok());
        assert_eq!(number("socketcall", SeccompArch::X86_64), None);
        assert_eq!(number("socketcall", SeccompArch::X86), Some(102));
        assert_eq!(number("ioctl", SeccompArch::X32), Some(X32_BIT | 514));
        assert_eq!(number("no_such_call", SeccompArch::X86), None);
        assert!(newest(SeccompArch::X86_64) >= 462);
    }
}
