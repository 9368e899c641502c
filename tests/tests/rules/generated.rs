//! The generated protocol code is checked in, so that a build needs no protoc and no code generator. This test generates it again
//! and compares. `PENSTOCK_REGENERATE=1` writes it (`just proto`).

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Compares the generated code with the checked-in file, or replaces the file.
fn hold(generated: &Path, checked_in: &Path) {
    let fresh = std::fs::read_to_string(generated).expect("generated file");
    if std::env::var_os("PENSTOCK_REGENERATE").is_some() {
        std::fs::write(checked_in, fresh).expect("write the checked-in file");
        return;
    }
    let stored = std::fs::read_to_string(checked_in).unwrap_or_default();
    assert!(stored == fresh, "{} isn't what its proto file gives: run `just proto`", checked_in.display());
}

#[test]
fn protocol_code_is_current() {
    let proto = root().join("wire/proto");
    let descriptors = protox::compile(["penstock.v1.proto"], [&proto]).expect("the proto file compiles");
    let out = tempfile::tempdir().expect("temporary directory");

    let messages = out.path().join("messages");
    std::fs::create_dir(&messages).expect("create");
    tonic_prost_build::configure()
        .build_client(false)
        .build_server(false)
        .out_dir(&messages)
        .compile_fds(descriptors.clone())
        .expect("messages");
    hold(&messages.join("penstock.v1.rs"), &root().join("wire/src/generated.rs"));

    let service = out.path().join("service");
    std::fs::create_dir(&service).expect("create");
    tonic_prost_build::configure()
        .build_client(false)
        .extern_path(".penstock.v1.FilterFrame", "::bytes::Bytes")
        .extern_path(".penstock.v1.CompanionFrame", "::bytes::Bytes")
        .extern_path(".penstock.v1", "::penstock_wire")
        .codec_path("crate::surface::grpc::codec::SessionCodec")
        .out_dir(&service)
        .compile_fds(descriptors)
        .expect("service");
    hold(&service.join("penstock.v1.rs"), &root().join("companion/server/src/surface/grpc/generated.rs"));
}

#[test]
fn code_of_the_companions_service_is_current() {
    let proto = root().join("wire/proto");
    let descriptors =
        protox::compile(["penstock.companions.v1.proto"], [&proto]).expect("the proto file compiles");
    let out = tempfile::tempdir().expect("temporary directory");
    tonic_prost_build::configure()
        .build_transport(false)
        .out_dir(out.path())
        .compile_fds(descriptors)
        .expect("client and server");
    hold(
        &out.path().join("penstock.companions.v1.rs"),
        &root().join("companion/server/src/election/companions/generated.rs"),
    );
}

#[test]
fn external_processing_code_is_current() {
    let proto = root().join("companion/picker/proto");
    let descriptors =
        protox::compile(["external_processor.proto"], [&proto]).expect("the proto file compiles");
    let out = tempfile::tempdir().expect("temporary directory");
    tonic_prost_build::configure()
        .build_client(false)
        .build_transport(false)
        // A body is passed on in the memory of its message.
        .bytes(".")
        .out_dir(out.path())
        .compile_fds(descriptors)
        .expect("server");
    hold(&out.path().join("envoy.service.ext_proc.v3.rs"), &root().join("companion/picker/src/generated.rs"));
}

#[test]
fn etcd_code_is_current() {
    let proto = root().join("companion/server/proto");
    let descriptors = protox::compile(["etcd.proto"], [&proto]).expect("the proto file compiles");
    let out = tempfile::tempdir().expect("temporary directory");
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .out_dir(out.path())
        .compile_fds(descriptors)
        .expect("client");
    hold(
        &out.path().join("etcdserverpb.rs"),
        &root().join("companion/server/src/election/etcd/generated.rs"),
    );
}
