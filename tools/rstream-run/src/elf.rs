//! What a program's file says of how it is loaded (the ELF format, 64 bits, little-endian).

/// The program header that names the loader.
const INTERPRETER: u32 = 3;

/// Whether no loader is named, so that the program is linked statically. `None`: it is no such file; a script
/// names the program that runs it.
pub(crate) fn is_static(file: &[u8]) -> Option<bool> {
    const CLASS_AND_ORDER: [u8; 2] = [2, 1];
    if !file.starts_with(b"\x7fELF") || file.get(4..6)? != CLASS_AND_ORDER {
        return None;
    }
    let offset = usize::try_from(u64::from_le_bytes(field(file, 32)?)).ok()?;
    let size = usize::from(u16::from_le_bytes(field(file, 54)?));
    let count = usize::from(u16::from_le_bytes(field(file, 56)?));
    let kind = |at: usize| {
        let header = offset.checked_add(at.checked_mul(size)?)?;
        Some(u32::from_le_bytes(field(file, header)?))
    };
    Some(!(0..count).any(|at| kind(at) == Some(INTERPRETER)))
}

fn field<const N: usize>(file: &[u8], offset: usize) -> Option<[u8; N]> {
    file.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_names_a_loader_is_dynamic() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(is_static(&own), Some(false));
    }

    #[test]
    fn a_program_without_a_loader_is_static() {
        let mut own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        // No program headers.
        own[56..58].fill(0);
        assert_eq!(is_static(&own), Some(true));
    }

    #[test]
    fn other_files_are_not_judged() {
        for file in [&b"#!/bin/sh\n"[..], b"", b"\x7fELF", &[0; 100]] {
            assert_eq!(is_static(file), None, "{file:?}");
        }
    }
}
