//! Compiles the protocol without protoc, which most machines do not have.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["etcd.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        // A value to write is shared with the caller. Values that are read are copied: as slices, one small object
        // would keep a whole list's message alive.
        .bytes(".etcdserverpb.PutRequest.value")
        .compile_fds(descriptors)?;
    Ok(())
}
