//! Packs one static binary: `pack NAME BINARY PATH-IN-IMAGE ARCHIVE ENTRYPOINT...`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, binary, at, archive, entrypoint @ ..] = args.as_slice() else {
        return Err("usage: pack NAME BINARY PATH-IN-IMAGE ARCHIVE ENTRYPOINT...".into());
    };
    let entrypoint: Vec<&str> = entrypoint.iter().map(String::as_str).collect();
    let image = oci::Image::of_binary(name, binary.as_ref(), at, &entrypoint);
    oci::write_archive(&[image], std::fs::File::create(archive)?)?;
    Ok(())
}
