//! Writes the pkg-config file.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    c_library_build::write_pkg_config("rstream_sockets", "rstream_c", "RSTREAM_PREFIX");
    // It is called before each fork, and when threads end, also after dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
