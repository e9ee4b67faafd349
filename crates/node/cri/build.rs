//! Compiles the protocol with protox, because protoc is usually not installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["runtime.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_server(true)
        .build_transport(false)
        .compile_fds(descriptors)?;
    Ok(())
}
