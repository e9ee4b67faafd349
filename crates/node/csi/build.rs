//! Compiles the protocols with protox, because protoc is usually not installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["csi.proto", "registration.proto"], ["proto"])?;
    // Tests use the servers for their own drivers.
    tonic_prost_build::configure().build_transport(false).compile_fds(descriptors)?;
    Ok(())
}
