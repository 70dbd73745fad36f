// Package errors has the error of the absent library.
package errors

type TencentCloudSDKError struct{}

func (*TencentCloudSDKError) Error() string {
	return "flannel was built without the library of tencent-vpc"
}
