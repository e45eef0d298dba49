//! Writes the pkg-config file.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    c_library_build::write_pkg_config("rdma_easy", "rdma_easy", "RDMA_EASY_PREFIX");
    // Threads of the program may be in a call, or end and run destructors of this library, after dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
