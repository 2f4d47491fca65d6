#!/bin/sh
# Exits 0 when this container's server answers over TCP, which the one that the entrypoint sets up with does not, and,
# on a replica, when both threads of replication run.
ask() {
    MYSQL_PWD=$MYSQL_ROOT_PASSWORD "$(command -v mariadb || command -v mysql)" \
        --host=127.0.0.1 --protocol=tcp --user=root --vertical --execute="$1"
}
if [ -z "${SCHEMALESS_REPLICA_OF:-}" ]; then
    ask 'SELECT 1' >/dev/null
else
    [ "$(ask 'SHOW REPLICA STATUS' | grep -cE '^ *(Replica|Slave)_(IO|SQL)_Running: Yes')" = 2 ]
fi
