use headlong::state::checkpoint::Manifest;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

/// A manifest with this body, whose checksum is right.
pub fn signed_manifest(body: &[u8]) -> Vec<u8> {
    let mut signed =
        format!("{{\n  \"manifest_xxh3_128\": \"{:032x}\",\n", xxh3_128(body)).into_bytes();
    signed.extend_from_slice(body);
    signed.push(b'\n');
    signed
}

/// No bytes make the parser of a checkpoint's manifest panic, take much memory, or believe a
/// contradiction.
///
/// The input is tried as it is, and as the body of a manifest whose checksum is right: otherwise
/// the checksum would stop everything at the start. True where it was believed.
pub fn checkpoint_manifest(data: &[u8]) -> bool {
    let file = Path::new("manifest.json");
    let _ = Manifest::parse(file, data);
    let Ok(manifest) = Manifest::parse(file, &signed_manifest(data)) else { return false };
    // Whatever is believed can be written and is believed again.
    let bytes = manifest.to_bytes();
    let back =
        Manifest::parse(file, &bytes).expect("a manifest that was accepted is accepted again");
    assert_eq!(back.layout, manifest.layout);
    assert_eq!(back.files, manifest.files);
    assert_eq!(back.state.step, manifest.state.step);
    true
}
