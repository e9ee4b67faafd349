//! Compiles the protocols with protox, because protoc is usually not installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = ["deviceplugin.proto", "podresources.proto", "dra.proto", "drahealth.proto"];
    let descriptors = protox::compile(files, ["proto"])?;
    // The kubelet uses the servers, and so do the plugins of tests.
    tonic_prost_build::configure().build_transport(false).compile_fds(descriptors)?;
    Ok(())
}
