//! Compiles the protocols without protoc, which a plain machine does not have.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = ["deviceplugin.proto", "podresources.proto", "dra.proto", "drahealth.proto"];
    let descriptors = protox::compile(files, ["proto"])?;
    // The servers are the kubelet's, and what tests' plugins are made of.
    tonic_prost_build::configure().build_transport(false).compile_fds(descriptors)?;
    Ok(())
}
