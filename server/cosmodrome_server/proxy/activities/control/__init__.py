"""`cosmodrome.v1.Control`: one file per thing an operator changes; `CONTROL` is the table."""

from typing import Any

from cosmodrome_server.proxy.activities.control.access import (
    check_access,
    delete_policy,
    delete_user,
    list_policies,
    list_users,
    put_policy,
    put_user,
)
from cosmodrome_server.proxy.activities.control.dead_letters import redrive
from cosmodrome_server.proxy.activities.control.describe_server import describe_server
from cosmodrome_server.proxy.activities.control.groups import (
    create_group,
    delete_group,
    list_groups,
)
from cosmodrome_server.proxy.activities.control.reset_offset import reset_offset
from cosmodrome_server.proxy.activities.control.topics import (
    create_topic,
    delete_topic,
    list_topics,
)
from cosmodrome_server.proxy.activities.control.waiting import list_scheduled, list_transactions
from cosmodrome_server.proxy.context import Activity

# Name of the RPC → what answers it. All of them answer once what they staged is durable.
CONTROL: dict[str, Activity[Any]] = {
    "CreateTopic": create_topic,
    "DeleteTopic": delete_topic,
    "ListTopics": list_topics,
    "CreateGroup": create_group,
    "DeleteGroup": delete_group,
    "ListGroups": list_groups,
    "ResetOffset": reset_offset,
    "Redrive": redrive,
    "ListScheduled": list_scheduled,
    "ListTransactions": list_transactions,
    "PutUser": put_user,
    "DeleteUser": delete_user,
    "ListUsers": list_users,
    "PutPolicy": put_policy,
    "DeletePolicy": delete_policy,
    "ListPolicies": list_policies,
    "CheckAccess": check_access,
    "DescribeServer": describe_server,
}
