//! Measures an API server as its objects grow from a thousand to a million.

use super::{
    api::{Bench, config_map},
    h2load::Load,
    table::{Better, Column},
};
use crate::{control_plane::Side, error::Result};

const SIZES: [u32; 4] = [1_000, 10_000, 100_000, 1_000_000];
/// Upstream needs ten minutes to store a million objects, and its store then approaches its default quota.
const UPSTREAM_SIZES: usize = 3;
/// The largest list that is read as a whole: for a million objects, the client would be the bottleneck.
const LISTED_WHOLE: u32 = 100_000;

pub(super) fn measure(mut bench: Bench) -> Result<Column> {
    bench.prepare_namespace()?;
    let body = bench.body("config-map", &config_map())?;
    let sizes = match bench.control_plane.side() {
        Side::Windlass(_) => SIZES.len(),
        Side::Upstream(_) => UPSTREAM_SIZES,
    };
    let mut created = 0;
    for size in &SIZES[..sizes] {
        let load = Load { body: Some(&body), ..bench.load("configmaps", size - created, 8, 8) };
        bench.requests(&format!("create ConfigMaps, up to {size}"), None, &load)?;
        created = *size;
        measure_size(&mut bench, created)?;
    }
    Ok(bench.measured())
}

/// Measures reads, memory and a restart with `size` objects.
fn measure_size(bench: &mut Bench, size: u32) -> Result<()> {
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
    let target = (size == 100_000).then_some(10.0);
    bench.note(&format!("{size} objects stored, to /readyz"), "s", Better::Less, target, ready);
    Ok(())
}
