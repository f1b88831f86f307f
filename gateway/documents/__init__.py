"""Documents made of the declarations: the OpenAPI document and the page of limits."""
