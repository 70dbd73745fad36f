// Package vpc has the calls of the absent library. All return an error.
package vpc

import "github.com/tencentcloud/tencentcloud-sdk-go/tencentcloud/common/errors"

type (
	Client struct{}
	Filter struct {
		Name   *string
		Values []*string
	}
	Route struct {
		RouteId                                                 *uint64
		DestinationCidrBlock, GatewayType, GatewayId, RouteType *string
		Enabled                                                 *bool
	}
	RouteTable struct {
		RouteTableId *string
		RouteSet     []*Route
	}
	Tables  struct{ RouteTableSet []*RouteTable }
	Answer  struct{ Response *Tables }
	Request struct {
		Filters      []*Filter
		RouteTableId *string
		Routes       []*Route
	}
)

func NewClientWithSecretId(_, _, _ string) (*Client, error) {
	return nil, &errors.TencentCloudSDKError{}
}
func NewDescribeRouteTablesRequest() *Request { return &Request{} }
func NewDeleteRoutesRequest() *Request        { return &Request{} }
func NewCreateRoutesRequest() *Request        { return &Request{} }

func (*Client) DescribeRouteTables(*Request) (*Answer, error) {
	return nil, &errors.TencentCloudSDKError{}
}
func (*Client) DeleteRoutes(*Request) (*Answer, error) { return nil, &errors.TencentCloudSDKError{} }
func (*Client) CreateRoutes(*Request) (*Answer, error) { return nil, &errors.TencentCloudSDKError{} }
