#!/bin/sh
# What Spark on Kubernetes expects of an image: `executor`, `driver …`, or a plain command.
set -e
case "$1" in
executor)
    exec /usr/bin/tini -s -- java \
        -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
        $(env | sed -n 's/^SPARK_JAVA_OPT_[0-9]*=//p') \
        -cp "$SPARK_HOME/jars/*:$SPARK_CLASSPATH" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
        --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
driver)
    shift
    exec /usr/bin/tini -s -- "$SPARK_HOME/bin/spark-submit" \
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" --deploy-mode client "$@"
    ;;
*)
    exec /usr/bin/tini -s -- "$@"
    ;;
esac
