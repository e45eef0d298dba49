//! Copies that tolerate races: other threads may read and write the same bytes at the same time.
//!
//! Two plain copies in Rust that access the same byte concurrently are undefined behaviour, because the
//! compiler may assume that there is no such race. So these copies are hidden from the compiler: short ones
//! are machine code in this file, and long ones call the C library's `memcpy` through an opaque pointer. Each
//! byte is then read or written as by a relaxed atomic access, in no particular order. A byte that is written
//! concurrently is copied as it was before or after.

use std::ffi::c_void;
use std::hint::black_box;

/// Longest copy, in bytes, that does not use the C library.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const SHORT: usize = 64;

/// Copies `length` bytes. Both sides may be accessed concurrently by functions of this module, other
/// processes and devices, but by no other means.
///
/// # Safety
/// `source` is valid for reads and `target` for writes of `length` bytes, and they do not overlap.
#[inline]
pub(super) unsafe fn copy(source: *const u8, target: *mut u8, length: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if length <= SHORT {
        // SAFETY: the caller's promise is this function's.
        return unsafe { copy_short(source, target, length) };
    }
    // SAFETY: the caller's promise is this function's.
    unsafe { copy_long(source, target, length) }
}

/// Copies by a function that is opaque to the compiler.
#[cfg(not(miri))]
unsafe fn copy_long(source: *const u8, target: *mut u8, length: usize) {
    type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;
    let memcpy: Copy = black_box(libc::memcpy);
    // SAFETY: the caller's promise is that of `memcpy`.
    unsafe { memcpy(target.cast(), source.cast(), length) };
}

/// Copies byte by byte, which Miri checks.
#[cfg(miri)]
unsafe fn copy_long(source: *const u8, target: *mut u8, length: usize) {
    use std::sync::atomic::{AtomicU8, Ordering};
    for at in 0..length {
        // SAFETY: `at` is within what the caller promises; a byte has no alignment, and is accessed
        // atomically by all of this module.
        unsafe {
            let byte = AtomicU8::from_ptr(source.add(at).cast_mut()).load(Ordering::Relaxed);
            AtomicU8::from_ptr(target.add(at)).store(byte, Ordering::Relaxed);
        }
    }
}

/// Copies at most [`SHORT`] bytes: all of them are loaded, by two halves that may overlap, before any is
/// stored.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy_short(source: *const u8, target: *mut u8, length: usize) {
    use std::arch::asm;

    // Moves the first and the last bytes by a pair of registers of `$size` bytes each.
    macro_rules! halves {
        ($class:ident, $move:literal, $modifier:literal, $size:literal) => {
            asm!(
                concat!($move, " {first", $modifier, "}, [{source}]"),
                concat!($move, " {last", $modifier, "}, [{source} + {length} - ", $size, "]"),
                concat!($move, " [{target}], {first", $modifier, "}"),
                concat!($move, " [{target} + {length} - ", $size, "], {last", $modifier, "}"),
                first = out($class) _,
                last = out($class) _,
                source = in(reg) source,
                target = in(reg) target,
                length = in(reg) length,
                options(nostack, preserves_flags),
            )
        };
    }

    // SAFETY: each block reads within `length` bytes of `source` and writes within as many of `target`, which
    // the caller promises, because `length` is at least `$size` in its arm (32 in the first) and at most
    // twice that. It changes nothing but the registers that it names.
    unsafe {
        match length {
            33.. => asm!(
                "movups {a}, [{source}]",
                "movups {b}, [{source} + 16]",
                "movups {c}, [{source} + {length} - 32]",
                "movups {d}, [{source} + {length} - 16]",
                "movups [{target}], {a}",
                "movups [{target} + 16], {b}",
                "movups [{target} + {length} - 32], {c}",
                "movups [{target} + {length} - 16], {d}",
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                source = in(reg) source,
                target = in(reg) target,
                length = in(reg) length,
                options(nostack, preserves_flags),
            ),
            16.. => halves!(xmm_reg, "movups", "", 16),
            8.. => halves!(reg, "mov", ":r", 8),
            4.. => halves!(reg, "mov", ":e", 4),
            2.. => halves!(reg, "mov", ":x", 2),
            1 => halves!(reg_byte, "mov", "", 1),
            0 => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::copy;

    #[test]
    fn every_length_is_copied_and_nothing_beyond() {
        let source: Vec<u8> = (0..200).map(|at| at as u8 + 1).collect();
        for length in 0..=150 {
            for offset in [0, 1, 7] {
                let mut target = [0; 200];
                // SAFETY: both have 200 bytes, and `offset + length` is at most 157.
                unsafe { copy(source[offset..].as_ptr(), target[offset..].as_mut_ptr(), length) };
                assert_eq!(target[offset..offset + length], source[offset..offset + length]);
                assert!(target[..offset].iter().chain(&target[offset + length..]).all(|&byte| byte == 0));
            }
        }
    }
}
