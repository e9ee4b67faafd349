//! Renders launch templates and scaling groups.

use super::{
    Writer,
    aws::volume,
    hcl::{Block, Expr},
};
use crate::{
    Error,
    model::aws::{
        BlockDevice, Disk, Distribution, LaunchTemplate, Resource, ScalingGroup, SpotOptions,
    },
};

impl Writer<'_> {
    pub(super) fn launch_template(
        &mut self,
        block: &mut Block,
        own: &Resource,
        template: &LaunchTemplate,
    ) -> Result<(), Error> {
        block.blocks("block_device_mappings", template.devices.iter().map(device).collect());
        if let Some(credits) = &template.cpu_credits {
            let mut inner = Block::default();
            inner.text("cpu_credits", credits);
            block.block("credit_specification", inner);
        }
        block.maybe("ebs_optimized", template.optimized.map(Expr::flag));
        let mut profile = Block::default();
        profile.value("name", self.link(&template.profile));
        block.block("iam_instance_profile", profile).text("image_id", &template.image);
        if let Some(options) = &template.spot {
            block.block("instance_market_options", spot(options));
        }
        block.maybe("instance_type", template.machine_type.as_ref().map(Expr::text));
        block.maybe("key_name", template.key.as_ref().map(|key| self.link(key)));
        let mut lifecycle = Block::default();
        lifecycle.flag("create_before_destroy", true);
        block.block("lifecycle", lifecycle).block("metadata_options", metadata(template));
        let mut monitoring = Block::default();
        monitoring.flag("enabled", template.monitoring);
        block.block("monitoring", monitoring).text("name", &own.name);
        let mut interface = Block::default();
        interface.maybe("associate_public_ip_address", template.public_address.map(Expr::flag));
        interface.flag("delete_on_termination", true);
        interface.int("ipv6_address_count", template.ipv6_addresses);
        interface.list("security_groups", self.links(&template.security_groups));
        block.block("network_interfaces", interface);
        if let Some(tenancy) = &template.tenancy {
            let mut inner = Block::default();
            inner.text("tenancy", tenancy);
            block.block("placement", inner);
        }
        let tagged = ["instance", "volume", "network-interface"].map(|kind| {
            let mut inner = Block::default();
            inner.text("resource_type", kind).tags(&own.tags);
            inner
        });
        block.blocks("tag_specifications", tagged.into()).tags(&own.tags);
        if !template.user_data.is_empty() {
            let kind = "aws_launch_template";
            let file = self.file(kind, &own.name, "user_data", &template.user_data, true)?;
            block.value("user_data", file);
        }
        Ok(())
    }

    pub(super) fn scaling_group(&self, block: &mut Block, own: &Resource, group: &ScalingGroup) {
        block.maybe("capacity_rebalance", group.rebalanced.map(Expr::flag));
        block.value("enabled_metrics", Expr::texts(&group.metrics));
        let (id, version) = (
            self.property(&group.template, "id"),
            self.property(&group.template, "latest_version"),
        );
        match &group.mixed {
            Some(mixed) => drop(block.block("mixed_instances_policy", mixture(mixed, id, version))),
            None => {
                let mut template = Block::default();
                template.value("id", id).value("version", version);
                block.block("launch_template", template);
            }
        }
        let mut balancers = self.links(&group.balancers);
        balancers.sort_by_key(Expr::written);
        let mut target_groups = self.links(&group.target_groups);
        target_groups.sort_by_key(Expr::written);
        block.list("load_balancers", balancers).list("target_group_arns", target_groups);
        block.int("max_instance_lifetime", group.lifetime);
        block.int("max_size", group.max).int("min_size", group.min);
        block.text("metrics_granularity", "1Minute").text("name", &own.name);
        block.flag("protect_from_scale_in", group.protected);
        block.list("suspended_processes", group.suspended.iter().map(Expr::text).collect());
        let tags = own.tags.iter().map(|(key, value)| {
            let mut tag = Block::default();
            tag.text("key", key).flag("propagate_at_launch", true).text("value", value);
            tag
        });
        block.blocks("tag", tags.collect());
        block.list("vpc_zone_identifier", self.links(&group.subnets));
        if let Some(pool) = &group.warm_pool {
            let mut inner = Block::default();
            inner.maybe("max_group_prepared_capacity", pool.max.map(Expr::int));
            inner.int("min_size", pool.min);
            block.block("warm_pool", inner);
        }
    }
}

fn device(device: &BlockDevice) -> Block {
    let mut block = Block::default();
    block.text("device_name", &device.device);
    match &device.disk {
        Disk::Own(name) => drop(block.text("virtual_name", name)),
        Disk::Ebs(disk) => {
            let mut ebs = Block::default();
            ebs.flag("delete_on_termination", disk.deleted_with_machine);
            volume(&mut ebs, disk, "volume_");
            block.block("ebs", ebs);
        }
    }
    block
}

fn spot(options: &SpotOptions) -> Block {
    let (mut block, mut inner) = (Block::default(), Block::default());
    inner.maybe("block_duration_minutes", options.minutes.map(Expr::int));
    inner.maybe("instance_interruption_behavior", options.interruption.as_ref().map(Expr::text));
    inner.text("max_price", &options.price);
    block.text("market_type", "spot").block("spot_options", inner);
    block
}

fn metadata(template: &LaunchTemplate) -> Block {
    let (mut block, metadata) = (Block::default(), &template.metadata);
    let ipv6 = if metadata.ipv6 { "enabled" } else { "disabled" };
    block.text("http_endpoint", "enabled").text("http_protocol_ipv6", ipv6);
    block.int("http_put_response_hop_limit", metadata.hops);
    block.text("http_tokens", &metadata.tokens);
    block
}

fn mixture(mixed: &Distribution, id: Expr, version: Expr) -> Block {
    let mut distribution = Block::default();
    for (field, number) in [
        ("on_demand_base_capacity", mixed.on_demand_base),
        ("on_demand_percentage_above_base_capacity", mixed.on_demand_above_base),
        ("spot_instance_pools", mixed.spot_pools),
    ] {
        distribution.maybe(field, number.map(Expr::int));
    }
    for (field, strategy) in [
        ("on_demand_allocation_strategy", &mixed.on_demand_strategy),
        ("spot_allocation_strategy", &mixed.spot_strategy),
    ] {
        distribution.maybe(field, strategy.as_ref().map(Expr::text));
    }
    distribution.text("spot_max_price", &mixed.spot_price);
    let (mut specification, mut template) = (Block::default(), Block::default());
    specification.value("launch_template_id", id).value("version", version);
    let overrides = mixed.types.iter().map(|name| {
        let mut one = Block::default();
        one.text("instance_type", name);
        one
    });
    template.block("launch_template_specification", specification);
    template.blocks("override", overrides.collect());
    let mut block = Block::default();
    block.block("instances_distribution", distribution).block("launch_template", template);
    block
}
