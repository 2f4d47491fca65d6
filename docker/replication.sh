#!/bin/sh
# Run once in each container, by the image's entrypoint, when the data folder is new: a primary gets the account that
# replicas log in with, a replica (SCHEMALESS_REPLICA_OF) is pointed at its primary. Replication starts with the server.
(
    set -e  # not -u: the entrypoint's function reads parameters that are not there
    # The entrypoint sources this and has the function; where the file is marked executable, it runs it and has not.
    if ! command -v docker_process_sql >/dev/null; then
        docker_process_sql() {
            MYSQL_PWD=$MYSQL_ROOT_PASSWORD "$(command -v mariadb || command -v mysql)" --user=root "$@"
        }
    fi
    version=$(echo 'SELECT VERSION()' | docker_process_sql --batch --skip-column-names)

    if [ -z "${SCHEMALESS_REPLICA_OF:-}" ]; then
        docker_process_sql <<EOF
CREATE USER 'replica'@'%' IDENTIFIED BY '$MYSQL_ROOT_PASSWORD';
GRANT REPLICATION SLAVE ON *.* TO 'replica'@'%';
EOF
        exit 0
    fi

    # What was done to set this server up is its own; nothing of it may stand in its GTID set.
    case $version in
    *MariaDB*)
        docker_process_sql <<EOF
RESET MASTER;
SET GLOBAL gtid_slave_pos = '';
CHANGE MASTER TO MASTER_HOST = '$SCHEMALESS_REPLICA_OF', MASTER_USER = 'replica',
    MASTER_PASSWORD = '$MYSQL_ROOT_PASSWORD', MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1;
EOF
        ;;
    *)
        case $version in
        8.0.*) reset='RESET MASTER' ;;
        *) reset='RESET BINARY LOGS AND GTIDS' ;;
        esac
        docker_process_sql <<EOF
$reset;
CHANGE REPLICATION SOURCE TO SOURCE_HOST = '$SCHEMALESS_REPLICA_OF', SOURCE_USER = 'replica',
    SOURCE_PASSWORD = '$MYSQL_ROOT_PASSWORD', SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1,
    SOURCE_CONNECT_RETRY = 1, SOURCE_RETRY_COUNT = 86400;
SET PERSIST super_read_only = ON;
EOF
        ;;
    esac
)
