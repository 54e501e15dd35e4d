"""`apache.rocketmq.v2.Admin`: one file per RPC; `ADMIN` is the table.

The reference serves these on a port of their own; here they share the clients' port and
the access rules (Get, List and Update on the resource).
"""

from typing import Any

from cosmodrome_server.proxy.activities.admin.admin_send_message import admin_send_message
from cosmodrome_server.proxy.activities.admin.change_log_level import change_log_level
from cosmodrome_server.proxy.activities.admin.delete_subscription import delete_subscription
from cosmodrome_server.proxy.activities.admin.describe_group_accumulation import (
    describe_group_accumulation,
)
from cosmodrome_server.proxy.activities.admin.describe_subscription import describe_subscription
from cosmodrome_server.proxy.activities.admin.describe_topic_status import describe_topic_status
from cosmodrome_server.proxy.activities.admin.get_consumer_running_info import (
    get_consumer_running_info,
)
from cosmodrome_server.proxy.activities.admin.get_proxy_runtime_stats import (
    get_proxy_runtime_stats,
)
from cosmodrome_server.proxy.activities.admin.get_topic_route import get_topic_route
from cosmodrome_server.proxy.activities.admin.list_consumer_connection import (
    list_consumer_connection,
)
from cosmodrome_server.proxy.activities.admin.list_subscription import list_subscription
from cosmodrome_server.proxy.activities.admin.print_thread_stack_trace import (
    print_thread_stack_trace,
)
from cosmodrome_server.proxy.activities.admin.query_message import query_message
from cosmodrome_server.proxy.activities.admin.query_time_span import query_time_span
from cosmodrome_server.proxy.activities.admin.reset_group_offset import reset_group_offset
from cosmodrome_server.proxy.activities.admin.verify_message import verify_message
from cosmodrome_server.proxy.context import Activity

ADMIN: dict[str, Activity[Any]] = {
    "ChangeLogLevel": change_log_level,
    "DescribeTopicStatus": describe_topic_status,
    "ListSubscription": list_subscription,
    "DescribeSubscription": describe_subscription,
    "DeleteSubscription": delete_subscription,
    "DescribeGroupAccumulation": describe_group_accumulation,
    "ListConsumerConnection": list_consumer_connection,
    "ResetGroupOffset": reset_group_offset,
    "QueryMessage": query_message,
    "PrintThreadStackTrace": print_thread_stack_trace,
    "VerifyMessage": verify_message,
    "AdminSendMessage": admin_send_message,
    "GetConsumerRunningInfo": get_consumer_running_info,
    "GetTopicRoute": get_topic_route,
    "QueryTimeSpan": query_time_span,
    "GetProxyRuntimeStats": get_proxy_runtime_stats,
}
