//! The tables of the pages that show what the planner says.

use super::*;

/// What the page shows of our choices: the models at 14 nodes and more. And what the two steps wait
/// for whose published times are the aim.
fn choices_text(models: &Models) -> String {
    let table = |(model, cluster, nodes): (Model, &str, usize), batch: usize, with_path: bool| {
        let (theirs, ancestor, name) = match model {
            Model::Dlrm => (&models.dlrm, Practice::hugectr_hybrid(), "DLRM"),
            Model::Dcnv2 => (&models.dcnv2, Practice::hugectr_collection(nodes), "DCNv2"),
        };
        let theirs = theirs.with_batch(batch);
        let ours = Workload { precision: Precision::Bf16, ..theirs.clone() };
        let cluster =
            ClusterDescription { nodes, ..ClusterDescription::built_in(cluster).unwrap() };
        let today = report::practice(&ours, &cluster);
        let compared =
            Compared { cluster: &cluster, ancestor: (&theirs, &ancestor), ours: (&ours, &today) };
        let title = format!("{name}, {nodes} nodes of {}, batch {batch}", cluster.name);
        let mut text = tables::choices(&title, &compared.choices());
        if with_path {
            text += &format!("\n{}", tables::critical_path(&title, &compared.today()));
        }
        text
    };
    [
        table((Model::Dlrm, "dgx-a100", 14), 71_680, true),
        table((Model::Dlrm, "dgx-a100", 128), 71_680, false),
        table((Model::Dcnv2, "dgx-h100", 8), 135_168, true),
        table((Model::Dcnv2, "dgx-h100", 128), 135_168, false),
    ]
    .join("\n")
}

#[test]
fn the_page_shows_what_the_planner_says_today() {
    let page = include_str!("../../../../../docs/scaling.md");
    let models = models().unwrap();
    let checked = tables::published(&published::check(&models));
    println!("{checked}\n{}", choices_text(&models));
    for table in [checked, choices_text(&models)].iter().flat_map(|text| text.split("\n\n")) {
        assert!(
            page.contains(table.trim()),
            "docs/scaling.md lacks, or has an older form of:\n{table}"
        );
    }
}

/// Bytes that all ranks need and send in a step of DLRM in bf16, and the step: as pure model
/// parallelism would, as it is trained, and as if devices merged equal rows in their node.
fn bytes_text(models: &Models) -> String {
    let mut text =
        "| DLRM on | practice | between nodes: needed, MB | sent, MB | inside: needed, MB \
                    | sent, MB | of what is sent, sums, MB | us a step |\n\
                    |---|---|---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
    for (nodes, batch) in [(1, 55_296), (14, 71_680)] {
        let workload = Workload { precision: Precision::Bf16, ..models.dlrm.with_batch(batch) };
        let cluster =
            ClusterDescription { nodes, ..ClusterDescription::built_in("dgx-a100").unwrap() };
        let today = report::practice(&workload, &cluster);
        let merging =
            |merge| Practice { variant: Variant { merge, ..today.variant }, ..today.clone() };
        let pure = Practice { hybrid: HybridMode::Off, ..merging(Merge::Off) };
        let ways = [
            ("pure model-parallel", pure),
            ("merged on the rank (default)", today.clone()),
            ("merged on the node", merging(Merge::Node)),
        ];
        for (name, practice) in &ways[..if nodes > 1 { 3 } else { 2 }] {
            let ours = (&workload, practice);
            let compared = Compared { cluster: &cluster, ancestor: ours, ours };
            let plan = compared.today();
            let bytes = plan.exchange_bytes_per_step;
            let sums = plan.traffic.all_reduce.total();
            let numbers = [
                bytes.needed_inter_node,
                bytes.inter_node,
                bytes.needed_intra_node,
                bytes.intra_node,
                sums,
            ];
            let numbers = numbers.map(|bytes| format!("{:.1}", bytes / 1e6)).join(" | ");
            let devices = cluster.num_devices();
            text += &format!(
                "| {devices} A100, {batch} | {name} | {numbers} | {:.0} |\n",
                plan.step_us
            );
        }
    }
    text
}

/// The published DCNv2 in bf16, with its bags pooled as `pool_at` says.
fn dcnv2(pool_at: PoolAtChoice, batch: usize) -> Workload {
    let mut config = preset("criteo-terabyte-dcnv2").unwrap();
    (config.comm.pool_at, config.train.precision) = (pool_at, config::Precision::Bf16);
    let rows = config.table_rows(None).unwrap();
    let workload =
        crate::plan::cluster::workload(&config, &rows, &Source::Terabyte, &Registry::default());
    workload.unwrap().with_batch(batch)
}

/// Bytes that all ranks send in a step of DCNv2 in bf16 with its bags pooled on the rank and at the
/// owner.
fn bags_text() -> String {
    let mut text =
        "| DCNv2 on | `pool_at` | tables at the owner | on the rank, MB | at the owner, MB \
                    | between nodes: sent, MB | inside: sent, MB | us a step | fits |\n\
                    |---|---|---:|---:|---:|---:|---:|---:|---|\n"
            .to_owned();
    for (nodes, batch) in [(1, 55_296), (8, 135_168)] {
        for (pool_at, is_whole, name) in [
            (PoolAtChoice::Rank, false, "rank"),
            (PoolAtChoice::Owner, false, "owner"),
            (PoolAtChoice::Auto, false, "auto"),
            (PoolAtChoice::Auto, true, "auto, tables of bags whole on a device"),
        ] {
            let mut workload = dcnv2(pool_at, batch);
            for table in workload.tables.iter_mut().filter(|table| is_whole && table.hotness > 1.0)
            {
                table.choice = PlacementChoice::TableWise(None);
            }
            let cluster =
                ClusterDescription { nodes, ..ClusterDescription::built_in("dgx-h100").unwrap() };
            let practice = report::practice(&workload, &cluster);
            let ours = (&workload, &practice);
            let plan = Compared { cluster: &cluster, ancestor: ours, ours }.today();
            let sum = |of: fn(&Bags) -> f64| practice.bags.iter().map(of).sum::<f64>() / 1e6;
            let (rank, owner) = (sum(|b| b.choice.rank_bytes), sum(|b| b.choice.owner_bytes));
            let bytes = plan.exchange_bytes_per_step;
            text += &format!(
                "| {} H100, {batch} | {name} | {} | {rank:.0} | {owner:.0} | \
                 {:.0} | {:.0} | {:.0} | {} |\n",
                cluster.num_devices(),
                practice.num_pooled(),
                bytes.inter_node / 1e6,
                bytes.intra_node / 1e6,
                plan.step_us,
                if plan.fits { "yes" } else { "no" }
            );
        }
    }
    text
}

#[test]
fn the_page_of_hybrid_embedding_shows_the_bytes_of_published_recipes() {
    let page = include_str!("../../../../../docs/hybrid.md");
    for table in [bytes_text(&models().unwrap()), bags_text()] {
        println!("{table}");
        assert!(
            page.contains(table.trim()),
            "docs/hybrid.md lacks, or has an older form of:\n{table}"
        );
    }
}
