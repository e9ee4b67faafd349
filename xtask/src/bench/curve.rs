//! How an API server does as its objects grow from a thousand to a million.

use super::{
    api::{Bench, config_map},
    h2load::Load,
    table::{Better, Column},
};
use crate::control_plane::Side;

const SIZES: [u32; 4] = [1_000, 10_000, 100_000, 1_000_000];
/// Upstream takes ten minutes to be given a million objects, and its store's default quota is near.
const UPSTREAM_SIZES: usize = 3;
/// A list of a million objects measures the client.
const LISTED_WHOLE: u32 = 100_000;

pub(super) fn measure(mut bench: Bench) -> Result<Column, String> {
    bench.prepare_namespace()?;
    let body = bench.body("config-map", &config_map())?;
    let sizes = match bench.control_plane.side() {
        Side::Windlass(_) => SIZES.len(),
        Side::Upstream(_) => UPSTREAM_SIZES,
    };
    let mut there = 0;
    for size in &SIZES[..sizes] {
        let load = Load { body: Some(&body), ..bench.load("configmaps", size - there, 8, 8) };
        bench.requests(&format!("create ConfigMaps, up to {size}"), None, &load)?;
        there = *size;
        at(&mut bench, there)?;
    }
    Ok(bench.measured())
}

/// What reads, memory and a new start cost with so many objects.
fn at(bench: &mut Bench, size: u32) -> Result<(), String> {
    let page = bench.load("configmaps?limit=500", 100, 1, 1);
    bench.requests(&format!("list 500 of {size} ConfigMaps"), None, &page)?;
    if size <= LISTED_WHOLE {
        let whole = bench.load("configmaps", 10, 1, 1);
        bench.requests(&format!("list {size} ConfigMaps"), None, &whole)?;
    }
    let one = bench.load("serviceaccounts/default", 10_000, 8, 8);
    bench.requests(&format!("get an object beside {size}"), None, &one)?;
    bench.memory(&format!("{size} objects"), None);
    bench.control_plane.kill();
    let ready = bench.control_plane.start_api_server()?.as_secs_f64();
    let wanted = (size == 100_000).then_some(10.0);
    bench.note(&format!("{size} objects stored, to /readyz"), "s", Better::Less, wanted, ready);
    Ok(())
}
