"""What T5X's programs share: their flags, the set-up of a process, and running a function with gin's arguments."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import gin
import jax
from absl import app, flags, logging

from t5x import gin_utils
from t5x.embedded import console, peers, signals
from t5xpg.base import clusters, garbage, private, stores

FLAGS = flags.FLAGS
JOINING = 300  # seconds that processes wait for each other, if no flag says it; JAX's number
PATIENCE = 10.0  # seconds after which they say so


def define_gin_flags() -> None:
    flags.DEFINE_multi_string("gin_file", None, "Gin file; may be repeated, later ones override.")
    flags.DEFINE_multi_string("gin_bindings", [], "One gin binding; may be repeated. --gin.X=Y is the same.")
    flags.DEFINE_list("gin_search_paths", ["."], "Folders that gin files are looked up in.")
    flags.DEFINE_string("tfds_data_dir", None, "Folder of prepared TensorFlow Datasets.")
    flags.DEFINE_list("seqio_additional_cache_dirs", [], "Further folders to look for cached tasks in.")


def define_infer_flags() -> None:
    flags.DEFINE_integer("shard_id", None, "Which of infer.num_shards shards to infer; overrides infer.shard_id.")


def define_train_flags() -> None:
    flags.DEFINE_boolean(
        "allow_changes",
        None,
        "Go on in a MODEL_DIR although data, lengths, batch size, vocabulary or network are not those of its "
        "config.gin. The embedded engine's own: T5X has no such flag and compares nothing.",
    )
    flags.DEFINE_string(
        "wandb", None, "A project of Weights & Biases that gets the numbers too. The embedded engine's own."
    )


def define_distributed_flags() -> None:
    flags.DEFINE_boolean(
        "multiprocess",
        False,
        "Whether this is one of several processes; what the next three flags do not say is detected. The embedded "
        "engine's own: T5X has no such flag.",
    )
    flags.DEFINE_boolean("multiprocess_gpu", False, "The same, as T5X calls it; for what is detected, see JAX.")
    flags.DEFINE_string("coordinator_address", None, "address:port of the first process.")
    flags.DEFINE_integer("process_count", None, "How many processes there are.")
    flags.DEFINE_integer("process_index", None, "Which of them this is.")
    flags.DEFINE_integer("initialization_timeout", None, "Seconds to wait for the others.")


def run(program: Callable, output_dir_macro: str = "MODEL_DIR", overriding_flags: Sequence[str] = ()) -> None:
    """Parses the command line and calls `program`, made gin-configurable, with what the gin files bind.

    Log records go to a file named after the program in the folder that `output_dir_macro` holds. The flags of
    `overriding_flags` override the program's arguments of the same names where they are given.
    """

    def main(argv: Sequence[str]) -> None:
        if len(argv) > 1:
            raise app.UsageError(f"Too many arguments: {argv[1:]}; gin files are given with --gin_file.")
        console.quiet_terminal()
        join_processes()
        signals.listen(peers.tell_before_the_end)
        try:
            with peers.reporting():
                run_configured()
        except SystemExit as end:
            if isinstance(end, signals.Stopped):
                signals.say_once(signals.describe(end.code - 128))
            peers.leave(end)
            raise
        peers.leave()

    def run_configured() -> None:
        set_up_data()
        configured = gin.configurable(program)
        engine_parent = str(Path(__file__).parents[2])
        with garbage.importing():  # what the files name
            gin_utils.parse_gin_flags([*FLAGS.gin_search_paths, engine_parent], FLAGS.gin_file, FLAGS.gin_bindings)
        output_dir = stores.plain(gin.query_parameter(f"%{output_dir_macro}"))
        stores.check_writable(output_dir, output_dir_macro)
        with console.log_to_file(os.path.join(output_dir, f"{program.__name__}.log")):
            logging.info("Gin configuration:\n%s", gin.config_str())
            given = {name: FLAGS[name].value for name in overriding_flags if FLAGS[name].value is not None}
            configured(**given)
            jax.effects_barrier()

    app.run(main, flags_parser=lambda args: app.parse_flags_with_usage(gin_utils.rewrite_gin_args(args)))


def join_processes() -> None:
    """Joins the other processes of a multi-process run, where the flags say there are some."""
    if not FLAGS.multiprocess and not FLAGS.multiprocess_gpu:
        return
    where = (FLAGS.coordinator_address, FLAGS.process_count, FLAGS.process_index)
    timeout = FLAGS.initialization_timeout or JOINING
    waiting = f"Waiting for the other processes to start, for {timeout} s (--initialization_timeout)."
    notice = threading.Timer(PATIENCE, print, [waiting], {"file": sys.stderr, "flush": True})
    notice.daemon = True
    notice.start()
    try:
        if FLAGS.multiprocess:
            clusters.join(*where, timeout)
        else:
            jax.distributed.initialize(*where, initialization_timeout=timeout)
    finally:
        notice.cancel()
    peers.join(peers.host_of(private.coordinator_address()))


def set_up_data() -> None:
    """Points SeqIO at the folders the flags name, and keeps TensorFlow off the accelerators."""
    import seqio
    import tensorflow as tf

    tf.config.experimental.set_visible_devices([], "GPU")
    if FLAGS.tfds_data_dir:
        seqio.set_tfds_data_dir_override(FLAGS.tfds_data_dir)
    seqio.add_global_cache_dirs(FLAGS.seqio_additional_cache_dirs)
