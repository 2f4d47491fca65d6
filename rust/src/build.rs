//! Run before the build: tells whether it is for a CPython whose objects are laid out as `direct.rs` says.

use pyo3_build_config::{BuildFlag, PythonImplementation};

fn main() {
    let python = pyo3_build_config::get();
    let minor = python.version().minor;
    let is_known = std::env::var_os("CARGO_FEATURE_STABLE").is_none()
        && python.implementation() == PythonImplementation::CPython
        && (11..=13).contains(&minor)
        && python.pointer_width() == Some(64)
        && !python.build_flags().0.contains(&BuildFlag::Py_GIL_DISABLED);
    println!("cargo:rustc-check-cfg=cfg(direct, tagged_ints)");
    if is_known {
        println!("cargo:rustc-cfg=direct");
    }
    if is_known && minor >= 12 {
        println!("cargo:rustc-cfg=tagged_ints");
    }
}
