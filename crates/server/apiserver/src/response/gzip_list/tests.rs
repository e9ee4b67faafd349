use std::io::Read as _;

use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::*;

fn definition() -> Arc<Definition> {
    static CONFIG_MAPS: std::sync::OnceLock<Arc<Definition>> = std::sync::OnceLock::new();
    let find = || {
        let all = crate::registry::builtin::builtin();
        all.into_iter().find(|definition| definition.is("", "configmaps")).unwrap()
    };
    CONFIG_MAPS.get_or_init(find).clone()
}

fn object(name: usize, revision: u64) -> Arc<Object> {
    let tree =
        json!({"metadata": {"name": format!("m-{name}")}, "data": {"k": "value ".repeat(20)}});
    let key = format!("/registry/configmaps/default/m-{name}").into();
    let value = api_codec::encode_stored(&tree).into();
    definition().stored_object(key, revision, &value)
}

async fn read(blocks: &Arc<Blocks>, objects: &[Arc<Object>]) -> Value {
    let meta = ListMeta { revision: 7, ..ListMeta::default() };
    let answer = list(blocks.clone(), definition(), 0, &meta, objects.to_vec());
    assert_eq!(answer.headers()["content-encoding"], "gzip");
    let gzipped = answer.into_body().collect().await.unwrap().to_bytes();
    let mut text = String::new();
    flate2::read::GzDecoder::new(&*gzipped).read_to_string(&mut text).unwrap();
    let plain = crate::response::list(
        &definition(),
        0,
        crate::request::ResponseFormat::JSON,
        &meta,
        objects.to_vec(),
    );
    let plain = plain.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(text.as_bytes(), plain);
    serde_json::from_str(&text).unwrap()
}

fn sizes(blocks: &Blocks) -> (usize, usize) {
    let kept = blocks.lock();
    (kept.young.len(), kept.old.len())
}

#[tokio::test]
async fn compresses_list_without_changing_it() {
    let blocks = Arc::new(Blocks::default());
    for count in [0, 1, 2, 63, 64, 1000] {
        let objects: Vec<_> = (0..count).map(|n| object(n, n as u64 + 1)).collect();
        let list = read(&blocks, &objects).await;
        assert_eq!(list["items"].as_array().unwrap().len(), count);
    }
}

#[test]
fn ends_block_at_byte_boundary() {
    let mut random = 1_u64;
    let mut byte = || {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        b'a' + (random >> 60) as u8
    };
    let noise: Vec<u8> = (0..400_000).map(|_| byte()).collect();
    for length in (0..noise.len()).step_by(9_973) {
        let mut zipped = deflate(&noise[..length]).unwrap();
        zipped.extend(deflate(b"after").unwrap());
        zipped.extend([3, 0]);
        let mut text = Vec::new();
        flate2::read::DeflateDecoder::new(&*zipped).read_to_end(&mut text).unwrap();
        assert!(text == [&noise[..length], b"after"].concat(), "{length}");
    }
}

#[tokio::test]
async fn recompresses_only_changed_block() {
    let blocks = Arc::new(Blocks::default());
    let mut objects: Vec<_> = (0..1000).map(|n| object(n, n as u64 + 1)).collect();
    read(&blocks, &objects).await;
    let (all, _) = sizes(&blocks);
    assert!((5..60).contains(&all), "{all} blocks");
    // Changed, removed and added objects affect single blocks only.
    objects[500] = object(500, 2000);
    let list = read(&blocks, &objects).await;
    assert_eq!(list["items"][500]["metadata"]["resourceVersion"], "2000");
    assert!(sizes(&blocks).0 <= all + 1);
    objects.remove(700);
    read(&blocks, &objects).await;
    objects.insert(300, object(5000, 2001));
    read(&blocks, &objects).await;
    assert!(sizes(&blocks).0 <= all + 4, "{:?}", sizes(&blocks));
}

#[tokio::test]
async fn evicts_unused_blocks() {
    let blocks = Arc::new(Blocks::default());
    let (one, other): (Vec<_>, Vec<_>) =
        ((0..200).map(|n| object(n, 1)).collect(), (200..400).map(|n| object(n, 1)).collect());
    read(&blocks, &one).await;
    read(&blocks, &other).await;
    blocks.age();
    read(&blocks, &one).await;
    blocks.age();
    let (young, old) = sizes(&blocks);
    assert!(young == 0 && old > 0);
    drop(other);
    blocks.age();
    assert_eq!(sizes(&blocks), (0, 0));
}
