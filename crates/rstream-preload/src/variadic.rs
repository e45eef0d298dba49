//! Functions that take any number of arguments. Those cannot be written in Rust, so each one here leaves all
//! arguments where they are, has a function look at the first, and goes on in the C library's.
//!
//! `dprintf` writes past the functions of this library, as [`streams`](crate::streams) do. `execl` is
//! [`execv`](crate::execute).

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::AtomicPtr;

use rstream_calls::errno::{keep, set_errno};
use rstream_calls::real::address;
use rstream_calls::stays_on_tcp;
use rustix::io::Errno;

use crate::execute::is_refused;
use crate::streams::WHY;

/// What to call instead of the C library's function.
type Instead = Option<extern "C" fn() -> c_int>;

/// The first argument is a descriptor, to which the C library writes.
fn write_by_descriptor(first: usize) -> Instead {
    let stays = stays_on_tcp(first as c_int, WHY);
    (!stays).then_some(refuse as extern "C" fn() -> c_int)
}

/// The program is replaced by the file with this path.
fn execute(first: usize) -> Instead {
    // SAFETY: the application's path.
    unsafe { is_refused(first as *const c_char) }.then_some(refuse as extern "C" fn() -> c_int)
}

/// The program is replaced by one that is to be found.
fn execute_name(_: usize) -> Instead {
    // SAFETY: no path.
    unsafe { is_refused(std::ptr::null()) }.then_some(refuse as extern "C" fn() -> c_int)
}

extern "C" fn refuse() -> c_int {
    set_errno(Errno::OPNOTSUPP);
    -1
}

/// Where to go on. A cancellation must not unwind through the assembly that calls this.
fn choose(look: impl FnOnce() -> Instead, name: &CStr, known: &AtomicPtr<c_void>) -> *const c_void {
    let mut state = 0;
    // SAFETY: the address of an integer, here and below.
    unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut state) };
    let instead = keep(look);
    // SAFETY: as above.
    unsafe { pthread_setcancelstate(state, &raw mut state) };
    instead.map_or_else(|| address(name, known).cast_const(), |instead| instead as *const c_void)
}

const CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

macro_rules! variadic {
    ($($name:ident: $look:ident;)*) => {$(
        mod $name {
            use super::*;

            pub(super) extern "C" fn choose_next(first: usize) -> *const c_void {
                static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                let name = concat!(stringify!($name), "\0").as_bytes();
                // SAFETY: it ends with a zero.
                let name = unsafe { CStr::from_bytes_with_nul_unchecked(name) };
                choose(|| $look(first), name, &NEXT)
            }
        }

        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            // The registers of arguments: six, `al` for the number of those that follow, and eight of
            // vectors.
            naked_asm!(
                "sub rsp, 184",
                "mov [rsp], rdi", "mov [rsp + 8], rsi", "mov [rsp + 16], rdx", "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8", "mov [rsp + 40], r9", "mov [rsp + 48], rax",
                "movups [rsp + 56], xmm0", "movups [rsp + 72], xmm1", "movups [rsp + 88], xmm2",
                "movups [rsp + 104], xmm3", "movups [rsp + 120], xmm4", "movups [rsp + 136], xmm5",
                "movups [rsp + 152], xmm6", "movups [rsp + 168], xmm7",
                "call {}",
                "mov r11, rax",
                "mov rdi, [rsp]", "mov rsi, [rsp + 8]", "mov rdx, [rsp + 16]", "mov rcx, [rsp + 24]",
                "mov r8, [rsp + 32]", "mov r9, [rsp + 40]", "mov rax, [rsp + 48]",
                "movups xmm0, [rsp + 56]", "movups xmm1, [rsp + 72]", "movups xmm2, [rsp + 88]",
                "movups xmm3, [rsp + 104]", "movups xmm4, [rsp + 120]", "movups xmm5, [rsp + 136]",
                "movups xmm6, [rsp + 152]", "movups xmm7, [rsp + 168]",
                "add rsp, 184",
                "jmp r11",
                sym $name::choose_next,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            // The registers of arguments: eight, and eight of vectors.
            naked_asm!(
                "stp x29, x30, [sp, #-208]!",
                "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]", "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]", "stp q0, q1, [sp, #80]", "stp q2, q3, [sp, #112]",
                "stp q4, q5, [sp, #144]", "stp q6, q7, [sp, #176]",
                "bl {}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]", "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]", "ldp q0, q1, [sp, #80]", "ldp q2, q3, [sp, #112]",
                "ldp q4, q5, [sp, #144]", "ldp q6, q7, [sp, #176]",
                "ldp x29, x30, [sp], #208",
                "br x16",
                sym $name::choose_next,
            )
        }
    )*};
}

variadic! {
    dprintf: write_by_descriptor;
    vdprintf: write_by_descriptor;
    __dprintf_chk: write_by_descriptor;
    __vdprintf_chk: write_by_descriptor;
    execl: execute;
    execle: execute;
    execlp: execute_name;
}
