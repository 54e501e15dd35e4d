"""Python workers that start warm: one process imports, the others are forked from it.

Spark starts a Python of its own for each kind of work (looking for data sources, making one,
planning, the stream's runner, tasks), five in turn before the first batch is committed, and
each imports pyspark, pyarrow and our source anew. Here they are imported once, in the zygote,
while the JVM starts:

    job ──starts──▶ zygote: imports, waits                      server.py
     └──starts──▶ JVM ──PYSPARK_PYTHON──▶ launcher               launcher.py
                                            │ arguments, environment, stdin, stdout, stderr
                                            └──▶ zygote ──fork──▶ pyspark.daemon, a runner, …

The launcher stays as the JVM's child: what happens to one happens to the other. Where there
is no zygote to answer, the launcher becomes the plain Python that Spark asked for, so that
the worst it can do is to be slow. For local masters only. docs/decisions tells why.
"""
