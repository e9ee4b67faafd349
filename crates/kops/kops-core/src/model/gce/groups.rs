//! The managers that keep the machines of instance groups at their size, one for each zone.

use api_meta::Tree as _;

use super::{balancer::serves_api, context::Context, graph::Model, names, template};
use crate::{error::Error, gce::InstanceGroupManager};

pub(super) fn add(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    for group in context.groups {
        names::check_machines(group.name())?;
        let template = template::add(context, model, group)?;
        let zones = context.zones(group)?;
        let default = if group.spec.text("role") == "Node" { 2 } else { 1 };
        let size = group.spec.opt_int("minSize").unwrap_or(default).max(0);
        let pool = context.api_pool()?.filter(|_| serves_api(group));
        for (zone, size) in zones.iter().zip(split(size, zones.len())) {
            let manager = InstanceGroupManager {
                base_name: group.name().to_owned(),
                zone: (*zone).to_owned(),
                size,
                template: template.clone(),
                pools: pool.clone().into_iter().collect(),
            };
            model.add(names::manager(group.name(), zone, context.name), manager);
        }
    }
    Ok(())
}

/// Splits a number into almost equal parts. The first ones are the larger ones.
fn split(number: i64, parts: usize) -> impl Iterator<Item = i64> {
    let count = i64::try_from(parts).unwrap_or(i64::MAX).max(1);
    (0..count).map(move |part| number / count + i64::from(part < number % count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_sizes_among_zones() {
        for (number, parts, wanted) in
            [(2, 3, [1, 1, 0].as_slice()), (5, 2, &[3, 2]), (0, 2, &[0, 0]), (7, 1, &[7])]
        {
            assert!(split(number, parts).eq(wanted.iter().copied()), "{number} in {parts}");
        }
    }
}
